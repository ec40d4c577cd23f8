"""A `tokenizers` tokenizer from the vocabulary of a GGUF file.

Reads the `tokenizer.ggml.*` fields and refuses by name what it does not know.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from tokenizers import AddedToken, models, normalizers
from tokenizers import Tokenizer as Backend

from model.errors import TokenizerError
from model.text.pre_tokenizers import PRE_TOKENIZERS, byte_level
from model.text.token_alphabet import SPACE_MARK, Alphabet
from model.text.tokenizer_parts import TokenizerParts

_MAX_LENGTH = 512
"""Characters of a SentencePiece token; every way to split it is looked at."""

_Value = TypeVar("_Value", str, int, float)


class _TokenType(enum.IntEnum):
    """`tokenizer.ggml.token_type`, as SentencePiece has it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def build_gguf_backend(metadata: Mapping[str, object]) -> TokenizerParts:
    """Build the tokenizer that a GGUF file describes.

    Raises:
        TokenizerError: A field is missing or malformed, or names rules that are not supported.
    """
    fields = _Fields(metadata)
    kind = fields.text("model")
    if kind == "gpt2":
        return _byte_level_bpe(fields)
    if kind == "llama":
        return _sentencepiece(fields)
    raise TokenizerError(f"tokenizer.ggml.model {kind!r} is not supported; gpt2 and llama are.")


class _Fields:
    """Typed access to the `tokenizer.ggml.*` fields."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self.tokens = self.array("tokens", str)
        types = self.array("token_type", int, default=[int(_TokenType.NORMAL)] * len(self.tokens))
        if not self.tokens or len(types) != len(self.tokens):
            raise TokenizerError(
                f"tokenizer.ggml.token_type has {len(types)} entries for {len(self.tokens)} tokens."
            )
        self.types = types

    def text(self, name: str, *, default: str | None = None) -> str:
        """Return a string field."""
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, str):
            raise TokenizerError(f"tokenizer.ggml.{name} must be a string, got {value!r}.")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean field."""
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, bool):
            raise TokenizerError(f"tokenizer.ggml.{name} must be true or false, got {value!r}.")
        return value

    def array(
        self, name: str, kind: type[_Value], *, default: list[_Value] | None = None
    ) -> list[_Value]:
        """Return a field that is a list of strings or numbers."""
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, list | tuple) or not all(isinstance(x, kind) for x in value):
            raise TokenizerError(f"tokenizer.ggml.{name} must be a list of {kind.__name__}.")
        return list(value)

    def token(self, name: str) -> str | None:
        """Return the token whose id a field holds, None without the field."""
        value = self._metadata.get(f"tokenizer.ggml.{name}_token_id")
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise TokenizerError(
                f"tokenizer.ggml.{name}_token_id must be below {len(self.tokens)}, got {value!r}."
            )
        return self.tokens[value]

    def vocabulary(self) -> dict[str, int]:
        """Map every token to its id; a spelling that occurs twice has no meaning."""
        vocabulary = {token: index for index, token in enumerate(self.tokens)}
        if len(vocabulary) != len(self.tokens):
            raise TokenizerError("tokenizer.ggml.tokens holds the same token twice.")
        return vocabulary


def _byte_level_bpe(fields: _Fields) -> TokenizerParts:
    """Byte-level BPE with the word splitting that `tokenizer.ggml.pre` names."""
    name = fields.text("pre", default="default")
    rules = PRE_TOKENIZERS.get(name)
    if rules is None:
        raise TokenizerError(
            f"tokenizer.ggml.pre {name!r} is not supported; known are {', '.join(PRE_TOKENIZERS)}."
        )
    merges = [_split_merge(line) for line in fields.array("merges", str)]
    backend = Backend(_bpe(fields.vocabulary(), merges, ignore_merges=rules.ignore_merges))
    backend.pre_tokenizer = byte_level(rules)
    _add_tokens(backend, fields)
    return _finish(backend, fields, Alphabet.BYTE_LEVEL, add_bos=rules.add_bos)


def _sentencepiece(fields: _Fields) -> TokenizerParts:
    """SentencePiece BPE: the merge order follows from the scores."""
    scores = fields.array("scores", float)
    if len(scores) != len(fields.tokens):
        raise TokenizerError(
            f"tokenizer.ggml.scores has {len(scores)} entries for {len(fields.tokens)} tokens."
        )
    backend = Backend(
        _bpe(
            fields.vocabulary(),
            _merges_from_scores(fields, scores),
            unk_token=fields.token("unknown"),
            fuse_unk=True,
            byte_fallback=_TokenType.BYTE in fields.types,
        )
    )
    prefixed = fields.flag("add_space_prefix", default=True)
    spaces = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE_MARK), spaces]) if prefixed else spaces
    )
    # With the prefix, normalising would put a space into the tokens' own spelling.
    _add_tokens(backend, fields, normalized=not prefixed)
    alphabet = Alphabet.SENTENCEPIECE_PREFIXED if prefixed else Alphabet.SENTENCEPIECE
    return _finish(backend, fields, alphabet, add_bos=True)


def _bpe(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: bool | str | None
) -> models.BPE:
    """Build the model, which checks that merges lead from tokens to tokens."""
    try:
        return models.BPE(vocab=vocabulary, merges=merges, **options)
    except Exception as error:
        raise TokenizerError(f"tokenizer.ggml.merges is not usable: {error}.") from error


def _split_merge(line: str) -> tuple[str, str]:
    """Split a merge at its space, which the left part may begin with."""
    at = line.find(" ", 1)
    if at < 0:
        raise TokenizerError(f"tokenizer.ggml.merges holds {line!r}, which is not a pair.")
    return line[:at], line[at + 1 :]


def _merges_from_scores(fields: _Fields, scores: list[float]) -> list[tuple[str, str]]:
    """List every pair of tokens that makes a token, best score first.

    SentencePiece always joins the neighbours that make the best-scored token, which is the same as
    applying merges in the order of their results' scores.
    """
    ids = {
        token: index
        for index, (token, kind) in enumerate(zip(fields.tokens, fields.types, strict=True))
        if kind == _TokenType.NORMAL
    }
    longest = max(map(len, ids), default=0)
    if longest > _MAX_LENGTH:
        raise TokenizerError(
            f"tokenizer.ggml.tokens may hold {_MAX_LENGTH} characters each, got {longest}."
        )
    merges: list[tuple[str, str]] = []
    for token in sorted(ids, key=lambda token: -scores[ids[token]]):
        pairs = [
            (left, right)
            for cut in range(1, len(token))
            if (left := token[:cut]) in ids and (right := token[cut:]) in ids
        ]
        merges += sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def _add_tokens(backend: Backend, fields: _Fields, *, normalized: bool = False) -> None:
    """Declare the tokens that are matched as they stand, before any splitting.

    Args:
        backend: Gets the tokens; its normaliser is set.
        fields: Names them.
        normalized: Whether those of the user are found in normalised text.
    """
    control, user_defined = [], []
    for token, kind in zip(fields.tokens, fields.types, strict=True):
        if kind in {_TokenType.CONTROL, _TokenType.UNKNOWN}:
            control.append(AddedToken(token, special=True, normalized=False))
        elif kind == _TokenType.USER_DEFINED:
            user_defined.append(AddedToken(token, special=False, normalized=normalized))
    backend.add_special_tokens(control)
    backend.add_tokens(user_defined)


def _finish(
    backend: Backend, fields: _Fields, alphabet: Alphabet, *, add_bos: bool
) -> TokenizerParts:
    """Name the beginning and the end of text, and say which of them surround a text."""
    bos, eos = fields.token("bos"), fields.token("eos")
    return TokenizerParts(
        backend,
        alphabet,
        prefix=_asked_for(fields, "bos", default=add_bos),
        suffix=_asked_for(fields, "eos", default=False),
        bos_token=bos,
        eos_token=eos,
    )


def _asked_for(fields: _Fields, name: str, *, default: bool) -> tuple[int, ...]:
    """Return the id of BOS or EOS if it belongs to every text."""
    if not fields.flag(f"add_{name}_token", default=default):
        return ()
    token = fields.token(name)
    if token is None:
        raise TokenizerError(
            f"tokenizer.ggml.add_{name}_token needs tokenizer.ggml.{name}_token_id."
        )
    return (fields.tokens.index(token),)
