"""Tokenizer: text to ids and back, from a Hugging Face folder or a GGUF vocabulary.

The rules of a vocabulary are the `tokenizers` library's; this class decides what surrounds a text
(BOS exactly as the file says), which text may name a control token, and which bytes a token is.
Never renders a chat and never sees a request. One instance serves every thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Backend

from model.errors import TokenizerError
from model.text.control_tokens import ControlTokens, Segment
from model.text.gguf_tokenizer import build_gguf_backend
from model.text.hf_tokenizer import build_hf_backend
from model.text.normaliser_growth import check_growth
from model.text.tokenizer_parts import TokenizerParts

_INVISIBLE = "\ufdd0\ufdd1"
"""Noncharacters put into text that must not name a control token; the normaliser removes them.

Unicode reserves them for internal use, so that no text contains them on purpose.
"""


class Tokenizer:
    """Text to ids and back, and the exact bytes of each token.

    Args:
        parts: What the files say; the library's tokenizer in it becomes this object's own.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        backend = parts.backend
        check_growth(backend.normalizer)
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        self._plain = backend
        self._parsing = _parsing_twin(backend)
        backend.encode_special_tokens = True
        self._alphabet = parts.alphabet
        self._prefix = list(parts.prefix)
        self._suffix = list(parts.suffix)
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self.control_tokens = ControlTokens(self._added[i] for i in self._special_ids)
        """The spellings of the special tokens, which a template may write and a message may not."""
        self.vocab_size = max(
            backend.get_vocab_size(with_added_tokens=True), 1 + max(added, default=0)
        )
        """One more than the highest id; a model's own vocabulary may be padded beyond it."""
        self.bos_token = parts.bos_token
        self.eos_token = parts.eos_token
        self.bos_token_id = self._id_of(parts.bos_token)
        self.eos_token_id = self._id_of(parts.eos_token)

    @staticmethod
    def from_hf_folder(path: Path) -> Tokenizer:
        """Read tokenizer.json, or vocab.json with merges.txt, with the settings beside them.

        Raises:
            TokenizerError: The files are missing, broken, or of a kind that is not supported.
        """
        return Tokenizer(build_hf_backend(path))

    @staticmethod
    def from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
        """Build the tokenizer that the `tokenizer.ggml.*` fields of a GGUF file describe.

        Raises:
            TokenizerError: A field is missing or malformed, or names rules that are not supported.
        """
        return Tokenizer(build_gguf_backend(metadata))

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Turn text into ids; other threads run meanwhile.

        Args:
            text: Any text without lone surrogates.
            add_special_tokens: Add what the file puts around a text; a BOS that the text already
                begins with is not added again.
            parse_special: Read the spelling of a control token as that token, not as text.

        Raises:
            TokenizerError: The text holds a lone surrogate.
        """
        ids = _encode(self._parsing if parse_special else self._plain, text)
        return self._surround(ids) if add_special_tokens else ids

    def encode_segments(
        self, segments: Iterable[Segment], *, add_special_tokens: bool = False
    ) -> list[int]:
        """Turn a prompt into ids in which only template text can name control tokens.

        Without text that spells a control token the ids are those of the whole prompt; with it, the
        spelling is tokenised as the ordinary text it is, together with what surrounds it.
        """
        text = _INVISIBLE.join(
            segment.text if segment.is_template else _INVISIBLE.join(segment.text)
            for segment in segments
        )
        ids = _encode(self._parsing, text)
        return self._surround(ids) if add_special_tokens else ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Turn ids into text; bytes that are no character become U+FFFD."""
        kept = (i for i in ids if not (skip_special_tokens and i in self._special_ids))
        text = b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._alphabet.adds_leading_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes this token adds to a text, possibly part of a character.

        Ids without a token, such as the padding of a model's vocabulary, add nothing.
        """
        if (added := self._added.get(token_id)) is not None:
            return added.encode()
        token = self._plain.id_to_token(token_id)
        return b"" if token is None else self._alphabet.to_bytes(token)

    def token_text(self, token_id: int) -> str:
        r"""Return the token as a log-probability list shows it: its text, or "bytes:\xf0\x9f"."""
        content = self.token_bytes(token_id)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def is_special(self, token_id: int) -> bool:
        """Tell whether this is a control token, which adds no text for a reader."""
        return token_id in self._special_ids

    def id_to_token(self, token_id: int) -> str | None:
        """Return the vocabulary's own spelling of a token, None for an id without one."""
        return self._plain.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token spelt as the vocabulary spells it."""
        return self._plain.token_to_id(token)

    def _surround(self, ids: list[int]) -> list[int]:
        """Add what the file puts around a text, unless it is there already."""
        if ids[: len(self._prefix)] != self._prefix:
            ids = self._prefix + ids
        if self._suffix and ids[-len(self._suffix) :] != self._suffix:
            ids = ids + self._suffix
        return ids

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self.token_to_id(token)


def _parsing_twin(backend: Backend) -> Backend:
    """Make a tokenizer over the same vocabulary that reads control tokens.

    It overlooks the invisible mark, and shares the model, which is the large part.
    """
    twin = Backend(backend.model)
    steps = [normalizers.Replace(_INVISIBLE, "")]
    if backend.normalizer is not None:
        steps.append(backend.normalizer)
    twin.normalizer = normalizers.Sequence(steps)
    if backend.pre_tokenizer is not None:
        twin.pre_tokenizer = backend.pre_tokenizer
    added = backend.get_added_tokens_decoder()
    twin.add_tokens([_found_unnormalized(added[token_id]) for token_id in sorted(added)])
    for token_id, token in added.items():
        if twin.token_to_id(token.content) != token_id:
            raise TokenizerError(f"The added token {token.content!r} has an odd id: {token_id}.")
    return twin


def _found_unnormalized(token: AddedToken) -> AddedToken:
    """Let a control token be found before the invisible mark is removed, not after."""
    if not token.special:
        return token
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=True,
    )


def _encode(backend: Backend, text: str) -> list[int]:
    """Encode with the call that lets other threads run and computes no offsets."""
    try:
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
    except (TypeError, UnicodeEncodeError) as error:
        raise TokenizerError(
            "The text holds half of a surrogate pair, which is no text."
        ) from error
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the library is no Exception
        raise TokenizerError(
            f"The tokenizer cannot read a text of {len(text)} characters: {str(error)[:200]}."
        ) from error
    ids: list[int] = encoding.ids
    return ids
