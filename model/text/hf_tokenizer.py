"""A `tokenizers` tokenizer from a folder in Hugging Face layout.

Reads tokenizer.json, or vocab.json with merges.txt, and the special tokens named beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from model.errors import TokenizerError
from model.text.token_alphabet import SPACE_MARK, Alphabet
from model.text.tokenizer_parts import TokenizerParts

_SPECIAL_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def build_hf_backend(path: Path) -> TokenizerParts:
    """Build the tokenizer that a folder holds.

    Raises:
        TokenizerError: The files are missing, broken, or of a kind that is not supported.
    """
    settings = {**read_json(path / "special_tokens_map.json")}
    settings.update(read_json(path / "tokenizer_config.json"))
    file = path / "tokenizer.json"
    if file.is_file():
        backend, rules = _from_json(file)
    elif (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        backend, rules = _from_vocabulary_and_merges(path)
    else:
        raise TokenizerError(
            f"{path} holds no tokenizer.json, and no vocab.json with merges.txt; "
            "a tokenizer.model alone is not supported."
        )
    _declare_special_tokens(backend, settings)
    prefix, suffix = _surroundings(backend)
    if rules.get("post_processor") is None:
        prefix = _named_ids(backend, settings, "bos")
        suffix = _named_ids(backend, settings, "eos")
    return TokenizerParts(
        backend,
        _alphabet(rules),
        prefix=prefix,
        suffix=suffix,
        bos_token=_content(settings.get("bos_token")),
        eos_token=_content(settings.get("eos_token")),
    )


def read_json(file: Path) -> Mapping[str, Any]:
    """Read a JSON object; a file that is not there is empty.

    Raises:
        TokenizerError: The file is not a JSON object.
    """
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{file} is not readable as JSON: {error}.") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{file} must hold a JSON object.")
    return content


def _from_json(file: Path) -> tuple[Backend, Mapping[str, Any]]:
    """Load tokenizer.json, and return its rules without the vocabulary."""
    rules = read_json(file)
    try:
        return Backend.from_file(str(file)), rules
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the library is no Exception
        raise TokenizerError(f"{file} is not a usable tokenizer: {error}.") from error


def _from_vocabulary_and_merges(path: Path) -> tuple[Backend, Mapping[str, Any]]:
    """Load the older pair of files of GPT-2's byte-level BPE."""
    try:
        model = models.BPE.from_file(str(path / "vocab.json"), str(path / "merges.txt"))
    except Exception as error:
        raise TokenizerError(f"{path}: vocab.json and merges.txt do not fit: {error}.") from error
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if backend.token_to_id("<|endoftext|>") is not None:
        backend.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return backend, {"decoder": {"type": "ByteLevel"}}


def _declare_special_tokens(backend: Backend, settings: Mapping[str, Any]) -> None:
    """Add the tokens that only the settings declare: by id, by name, and the extra ones.

    All of a kind are added at once: each call of the library looks through all there are.
    """
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    declared = [
        AddedToken(fields.pop("content"), **fields)
        for fields in _declared(settings)
        if fields["content"] not in known
    ]
    backend.add_tokens(declared)
    known |= {token.content for token in declared}
    named = [settings.get(f"{name}_token") for name in _SPECIAL_NAMES]
    extra = settings.get("additional_special_tokens") or []
    if not isinstance(extra, list):
        raise TokenizerError("tokenizer_config.json: additional_special_tokens must be a list.")
    contents = [content for token in [*named, *extra] if (content := _content(token)) is not None]
    missing = [content for content in dict.fromkeys(contents) if content not in known]
    backend.add_special_tokens(
        [AddedToken(content, special=True, normalized=False) for content in missing]
    )


_TOKEN_FIELDS = frozenset({"single_word", "lstrip", "rstrip", "normalized", "special"})


def _declared(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of added_tokens_decoder in the order of their ids.

    Raises:
        TokenizerError: It is malformed; the message says where.
    """
    declared = settings.get("added_tokens_decoder") or {}
    if not isinstance(declared, Mapping):
        raise TokenizerError("tokenizer_config.json: added_tokens_decoder must be an object.")
    found: list[tuple[int, dict[str, Any]]] = []
    for index, fields in declared.items():
        is_sound = (
            index.isdecimal()
            and isinstance(fields, Mapping)
            and isinstance(fields.get("content"), str)
            and all(isinstance(fields[name], bool) for name in _TOKEN_FIELDS & fields.keys())
        )
        if not is_sound:
            raise TokenizerError(
                "tokenizer_config.json: added_tokens_decoder must map ids to objects with a "
                f"content and flags (got {index[:40]!r}: {str(fields)[:80]})."
            )
        kept = {name: fields[name] for name in _TOKEN_FIELDS & fields.keys()}
        found.append((int(index), {"content": fields["content"], **kept}))
    return [fields for _, fields in sorted(found, key=lambda entry: entry[0])]


def _content(token: object) -> str | None:
    """Return the text of a token that is written as a string or as an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _surroundings(backend: Backend) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Find what the post-processor puts before and after a text."""
    (encoding,) = backend.encode_batch(["a"], add_special_tokens=True)
    inner = [index for index, special in enumerate(encoding.special_tokens_mask) if not special]
    if not inner:
        return (), ()
    return tuple(encoding.ids[: inner[0]]), tuple(encoding.ids[inner[-1] + 1 :])


def _named_ids(backend: Backend, settings: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return the id of BOS or EOS if the settings ask for it around every text."""
    content = _content(settings.get(f"{name}_token"))
    if not settings.get(f"add_{name}_token") or content is None:
        return ()
    token_id = backend.token_to_id(content)
    return () if token_id is None else (token_id,)


def _alphabet(rules: Mapping[str, Any]) -> Alphabet:
    """Tell from the decoder how tokens spell bytes."""
    decoder = rules.get("decoder") or {}
    steps = decoder.get("decoders", [decoder])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return Alphabet.BYTE_LEVEL
    replaces_space = any(
        step.get("type") == "Replace" and step.get("pattern", {}).get("String") == SPACE_MARK
        for step in steps
    )
    if "Metaspace" in kinds or replaces_space:
        strips = "Strip" in kinds or any(
            step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never"
            for step in steps
        )
        return Alphabet.SENTENCEPIECE_PREFIXED if strips else Alphabet.SENTENCEPIECE
    raise TokenizerError(
        f"The tokenizer's decoder {sorted(map(str, kinds))} is not supported; "
        "byte-level and SentencePiece ones are."
    )
