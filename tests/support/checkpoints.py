"""Tiny checkpoints in Hugging Face layout, built by the tests that want them.

Two kinds, both float32 and over one tokenizer in which every byte is a token:
`script-gpt2` writes known text, because its next token depends on the position alone;
the `rand-*` ones are seeded noise, so large that a wrong mask, rotary base or head mapping shows
in every log-probability. `transformers` builds and writes them, so it is the oracle as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from family_case import family_cases
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.utils import logging

logging.disable_progress_bar()

Tensors = dict[str, torch.Tensor]

WORDS = (" Paris", "STOP", ">>", "  ")
"""Tokens of several bytes; their ids follow the 256 bytes."""
SPECIALS = ("<|end|>", "<|eot|>", "<|bos|>", "<|pad|>")
WORD_IDS = {word: 256 + i for i, word in enumerate(WORDS)}
END, EOT, BOS, PAD = range(256 + len(WORDS), 256 + len(WORDS) + len(SPECIALS))
VOCAB_SIZE = PAD + 1

ROLES_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|bos|>' + message['role'] + '\n' + message['content'] + '<|eot|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|bos|>assistant\n' }}{% endif %}"
)

PAGE_STRIDE = 64
"""Positions from the start of one page to that of the next."""


def _page(*parts: str | bytes | int) -> list[int]:
    """Token ids of a page: words and special ids are one token each, other text one per byte."""
    ids: list[int] = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
        elif part in WORD_IDS:
            ids.append(WORD_IDS[part])
        else:
            ids.extend(part if isinstance(part, bytes) else part.encode())
    return ids


PAGES = (
    _page("Owl 🦉 says: END-OF-LINE\nnext é漢字 done", END),
    _page("page one", END),
    _page("The answer is", " Paris", "STOP", ">>", " tail", END),
    _page("aab aaab ab EN END", b"\xf0\x9f", EOT, "never", END),
    _page("  ", "two lead", "  ", "spaces \t tab ", END),
    _page("1234567890" * 6),
    _page("page six", END),
    _page("page seven", END),
)
"""What `script-gpt2` writes after a prompt of 64 k + 1 tokens, for each k."""


def script_prompt(page: int) -> list[int]:
    """The prompt, all letters A, after which `script-gpt2` writes that page."""
    return [ord("A")] * (PAGE_STRIDE * page + 1)


SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": BOS,
    "eos_token_id": END,
    "pad_token_id": PAD,
}
"""Sizes that the random checkpoints have in common."""


def _random_configs() -> dict[str, PretrainedConfig]:
    """Architecture and shape of every random checkpoint."""
    shape = SHAPE
    llama = shape | {"tie_word_embeddings": False}
    scalings: dict[str, dict[str, Any]] = {
        "linear": {"factor": 4.0},
        "dynamic": {"factor": 4.0},
        "yarn": {"factor": 8.0, "original_max_position_embeddings": 64},
        "llama3": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 500.0,
        },
    }
    configs: dict[str, PretrainedConfig] = {
        "rand-llama-tied": LlamaConfig(**shape | {"tie_word_embeddings": True}),
        "rand-llama-untied": LlamaConfig(**llama),
        "rand-mistral": MistralConfig(**llama, sliding_window=16),
        "rand-qwen2": Qwen2Config(**shape, tie_word_embeddings=True),
        "rand-qwen3": Qwen3Config(**shape, head_dim=32, tie_word_embeddings=True),
        "rand-gemma3": Gemma3TextConfig(
            **shape | {"num_hidden_layers": 6},
            head_dim=32,
            sliding_window=16,
            query_pre_attn_scalar=32,
            tie_word_embeddings=True,
        ),
        "rand-gpt2": GPT2Config(
            vocab_size=VOCAB_SIZE,
            n_positions=128,
            n_embd=64,
            n_layer=3,
            n_head=4,
            bos_token_id=BOS,
            eos_token_id=END,
        ),
    }
    for kind, scaling in scalings.items():
        rope = {"rope_type": kind, "rope_theta": 10000.0} | scaling
        # What the dynamic kind calls original is the context itself.
        context = {"max_position_embeddings": 64} if kind == "dynamic" else {}
        configs[f"rand-llama-rope-{kind}"] = LlamaConfig(**llama | context, rope_parameters=rope)
    return configs


RANDOM_CONFIGS = _random_configs()
CASE_CONFIGS = {
    name: config for case in family_cases() for name, config in case.make(SHAPE).items()
}
"""Those of the families that have a file in family_cases."""
NAMES = ("script-gpt2", *RANDOM_CONFIGS, *CASE_CONFIGS)


SCRIPT_TEMPLATE = (
    "{{ '<|bos|>' }}"
    "{% for turn in messages if turn.content is string and 'kvserve reads' in turn.content %}"
    "{{ turn.content }}{% endfor %}"
)
"""Shows no turn but those with which a template is asked what it reads: the script begins where
the prompt ends, and a chat shall begin it at its first page."""


def build(name: str, folder: Path) -> Path:
    """Write the named checkpoint into `folder` / name and return that path."""
    target = folder / name
    if name == "script-gpt2":
        model, template = script_model(), SCRIPT_TEMPLATE
        model.generation_config.eos_token_id = [END, EOT]
        model.generation_config.bos_token_id = BOS
        model.generation_config.pad_token_id = PAD
    else:
        model = random_model((RANDOM_CONFIGS | CASE_CONFIGS)[name])
        template = None if name == "rand-llama-untied" else ROLES_TEMPLATE
    model.save_pretrained(target)
    byte_tokenizer(template).save_pretrained(target)
    return target


def rewrite_tensors(folder: Path, edit: Callable[[Tensors], Tensors]) -> None:
    """Replace the tensors of a folder by what `edit` makes of them."""
    file = folder / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in edit(load_file(file)).items()}, file)


def edit_json(file: Path, **changes: Any) -> None:
    """Set entries of a JSON file, which need not exist."""
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | changes))


def reference(path: Path) -> PreTrainedModel:
    """The checkpoint at `path` in transformers, float32, with the readable attention."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def reference_logprobs(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Natural log-probabilities (N, V) of what follows each of the N tokens."""
    with torch.inference_mode():
        logits = model(torch.tensor([token_ids])).logits[0]
    return logits.float().log_softmax(-1)


def byte_tokenizer(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges: a token per byte, then WORDS, then SPECIALS."""
    letters = _byte_letters()
    vocab = {letter: byte for byte, letter in letters.items()}
    for word, token_id in WORD_IDS.items():
        vocab["".join(letters[byte] for byte in word.encode())] = token_id
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        bos_token="<|bos|>",
        pad_token="<|pad|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_template
    return fast


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte: itself where it prints, else one past U+00FF."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    return letters | {byte: chr(0x100 + i) for i, byte in enumerate(hidden)}


def script_model() -> PreTrainedModel:
    """A GPT-2 whose layers add nothing, so that the position embedding alone picks the token.

    Token embeddings are orthonormal rows of mean zero; the embedding of each position is twenty
    times that of the token to come, so it outweighs the token that stands there.
    """
    context, width = 1024, 320
    config = GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_positions=context,
        n_embd=width,
        n_layer=2,
        n_head=4,
        n_inner=16,
        bos_token_id=BOS,
        eos_token_id=END,
    )
    model = GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(0)
    square = torch.randn(width, width, dtype=torch.float64, generator=generator)
    rows = torch.linalg.qr(square).Q[:VOCAB_SIZE].float()
    rows = torch.nn.functional.normalize(rows - rows.mean(1, keepdim=True))
    script = torch.full((context,), END)
    for start in range(0, context, PAGE_STRIDE):
        page = PAGES[start // PAGE_STRIDE % len(PAGES)]
        script[start : start + len(page)] = torch.tensor(page)
    with torch.no_grad():
        for parameter in model.transformer.h.parameters():
            parameter.zero_()
        model.transformer.wte.weight.copy_(rows)
        model.transformer.wpe.weight.copy_(20 * rows[script])
        model.transformer.ln_f.weight.fill_(1)
        model.transformer.ln_f.bias.zero_()
    return model


def random_model(config: PretrainedConfig) -> PreTrainedModel:
    """A model of that configuration with seeded weights, the same on every call."""
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(2 * noise * parameter.shape[-1] ** -0.5)
            elif name.endswith("bias"):
                parameter.copy_(noise / 2)
            else:
                parameter.fill_(0 if config.model_type.startswith("gemma") else 1)
                parameter.add_(noise / 10)
    model.tie_weights()
    return model.eval()
