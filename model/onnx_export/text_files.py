"""The files that turn text into ids beside an exported model: tokenizer, template, end tokens.

A folder's own files are copied as they are. A GGUF file's vocabulary is written as
tokenizer.json, with the decoder and the surrounding tokens that the file implies, and its chat
template as chat_template.jinja: what transformers, optimum and onnxruntime-genai read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, processors

from model.chat_template import read_gguf_templates
from model.formats.gguf_checkpoint import GGUFCheckpoint
from model.formats.loader import Checkpoint
from model.text.gguf_tokenizer import build_gguf_backend
from model.text.token_alphabet import SPACE_MARK, Alphabet
from model.text.tokenizer_parts import TokenizerParts

COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
TEMPLATES = "additional_chat_templates"


def write_text_files(path: Path, checkpoint: Checkpoint, *, folder: Path) -> None:
    """Write or copy them.

    Args:
        path: Where the checkpoint lies.
        checkpoint: The same, opened.
        folder: Where to; it exists.

    Raises:
        ModelError: The vocabulary or the template is broken.
    """
    if isinstance(checkpoint, GGUFCheckpoint):
        _write_gguf_files(checkpoint.file.metadata, folder)
    else:
        for name in COPIED:
            if (path / name).is_file():
                shutil.copyfile(path / name, folder / name)
        if (path / TEMPLATES).is_dir():
            shutil.copytree(path / TEMPLATES, folder / TEMPLATES)
    generation = folder / "generation_config.json"
    if not generation.exists():
        end_ids = sorted(checkpoint.eos_token_ids)
        ends = {"eos_token_id": end_ids} if end_ids else {}
        _write_json(generation, {**checkpoint.default_params, **ends})


def _write_gguf_files(metadata: Mapping[str, object], folder: Path) -> None:
    parts = build_gguf_backend(metadata)
    complete_tokenizer(parts).save(str(folder / "tokenizer.json"))
    tokens = {"bos_token": parts.bos_token, "eos_token": parts.eos_token}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{name: token for name, token in tokens.items() if token is not None},
    }
    _write_json(folder / "tokenizer_config.json", settings)
    templates = read_gguf_templates(metadata)
    if isinstance(templates, str):
        templates = {"default": templates}
    for name, template in (templates or {}).items():
        if name == "default":
            target = folder / "chat_template.jinja"
        else:
            target = folder / TEMPLATES / f"{name}.jinja"
            target.parent.mkdir(exist_ok=True)
        target.write_text(template, encoding="utf-8")


def complete_tokenizer(parts: TokenizerParts) -> Backend:
    """A tokenizer that does by itself what ours does around it: surround a text, and decode.

    Args:
        parts: The vocabulary; its tokenizer is changed.
    """
    backend = parts.backend
    if parts.prefix or parts.suffix:
        ids = (*parts.prefix, *parts.suffix)
        names = {backend.id_to_token(token_id): token_id for token_id in ids}
        before = [backend.id_to_token(token_id) for token_id in parts.prefix]
        after = [backend.id_to_token(token_id) for token_id in parts.suffix]
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, "$B:1"],
            special_tokens=list(names.items()),
        )
    if parts.alphabet is Alphabet.BYTE_LEVEL:
        backend.decoder = decoders.ByteLevel()
    else:
        steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
        if parts.alphabet.adds_leading_space:
            steps.append(decoders.Strip(" ", 1, 0))
        backend.decoder = decoders.Sequence(steps)
    return backend


def _write_json(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
