"""The ways byte-level vocabularies split text into words, by the names GGUF files give them.

The expressions are those of the original tokenizers; what has no entry here is not supported.
Names: `tokenizer.ggml.pre` in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_QWEN35 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    + r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Expressions applied one after the other, each isolating its matches."""

    splits: tuple[str, ...]
    ignore_merges: bool = False
    """A word that is a token is taken whole."""
    add_bos: bool = False
    """Whether BOS is added when the file does not say."""


_WORDS = PreTokenizer((_GPT2,))
_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN = PreTokenizer((_QWEN2,))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "default": PreTokenizer(
            (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
        ),
        "gpt-2": _WORDS,
        "mpt": _WORDS,
        "olmo": _WORDS,
        "phi-2": _WORDS,
        "smollm": _DIGITS,
        "starcoder": _DIGITS,
        "refact": _DIGITS,
        "command-r": _DIGITS,
        "llama-bpe": _LLAMA,
        "llama3": _LLAMA,
        "llama-v3": _LLAMA,
        "dbrx": PreTokenizer((_LLAMA3,)),
        "smaug-bpe": PreTokenizer((_LLAMA3,)),
        "qwen2": _QWEN,
        "deepseek-r1-qwen": _QWEN,
        "qwen35": PreTokenizer((_QWEN35,)),
        "deepseek-coder": PreTokenizer(
            (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
        ),
        "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    }
)
"""Every supported name of `tokenizer.ggml.pre`."""


def byte_level(rules: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """Build the library's pre-tokenizer: the splits, then bytes to letters."""
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(expression), behavior="isolated") for expression in rules.splits
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)
