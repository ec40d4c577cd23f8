"""OLMo 2."""

import gguf
from family_case import FamilyCase, Shape
from transformers import Olmo2Config, PretrainedConfig


def make(shape: Shape) -> dict[str, PretrainedConfig]:
    return {
        "rand-olmo2": Olmo2Config(**shape),
        "rand-olmo2-tied": Olmo2Config(**shape | {"tie_word_embeddings": True}),
    }


CASE = FamilyCase(make=make, arch=gguf.MODEL_ARCH.OLMO2)
