"""SmolLM3."""

import gguf
from family_case import FamilyCase, Shape, interleaved_heads
from transformers import PretrainedConfig, SmolLM3Config


def make(shape: Shape) -> dict[str, PretrainedConfig]:
    shape = shape | {"num_hidden_layers": 5}
    return {
        "rand-smollm3": SmolLM3Config(**shape),
        "rand-smollm3-windowed": SmolLM3Config(
            **shape,
            no_rope_layers=[1, 0, 1, 0, 1],
            use_sliding_window=True,
            sliding_window=16,
            tie_word_embeddings=False,
        ),
    }


def has_twin(config: PretrainedConfig) -> bool:
    """A GGUF file cannot say which layers are not turned."""
    return not config.use_sliding_window


CASE = FamilyCase(
    make=make, arch=gguf.MODEL_ARCH.SMOLLM3, convert=interleaved_heads, has_twin=has_twin
)
