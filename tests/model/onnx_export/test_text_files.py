"""What transformers reads of the text files beside an exported model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoints import END
from gguf_twins import write_twin
from nasty_text import NASTY_TEXTS
from sentencepiece_twins import gguf_of_sentencepiece, trained_sentencepiece
from transformers import AutoTokenizer

from model.formats.loader import open_checkpoint
from model.onnx_export.text_files import complete_tokenizer, write_text_files
from model.text.gguf_tokenizer import build_gguf_backend

MESSAGES = [{"role": "user", "content": "Hello, how are you?"}]


def written(path: Path, folder: Path) -> Path:
    """A folder with the text files of a checkpoint."""
    folder.mkdir()
    write_text_files(path, open_checkpoint(path), folder=folder)
    return folder


def assert_equal_tokenizers(path: Path, folder: Path, texts) -> None:
    """Transformers turns every text into our ids, and back into our text.

    There a text may name a control token; ours reads one only when it is asked to.
    """
    ours, theirs = open_checkpoint(path).tokenizer, AutoTokenizer.from_pretrained(folder)
    for text in texts:
        ids = ours.encode(text, parse_special=True)
        assert theirs(text)["input_ids"] == ids
        kept = [token_id for token_id in ids if not ours.is_special(token_id)]
        assert theirs.decode(kept) == ours.decode(kept)


def test_a_folders_files_are_copied(checkpoint, tmp_path: Path):
    """Tokenizer, template and configuration are those of the checkpoint, byte for byte."""
    source = checkpoint("rand-llama-tied")
    folder = written(source, tmp_path / "out")
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.json", "tokenizer.json", "chat_template.jinja"}
    assert not names & {"model.safetensors"}
    for name in names:
        assert (folder / name).read_bytes() == (source / name).read_bytes()


def test_templates_of_several_names_come_along(checkpoint_copy, tmp_path: Path):
    """The folder of further templates is copied, too."""
    source = checkpoint_copy("rand-llama-tied")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    folder = written(source, tmp_path / "out")
    assert (folder / "additional_chat_templates" / "tool_use.jinja").read_text() == "{{ tools }}"


def test_a_byte_level_gguf_becomes_a_tokenizer_of_transformers(checkpoint, tmp_path: Path):
    """Ids and texts are ours, and so are the ids that end a text."""
    twin = write_twin(checkpoint("rand-llama-tied"), tmp_path / "twin.gguf")
    folder = written(twin, tmp_path / "out")
    assert_equal_tokenizers(twin, folder, NASTY_TEXTS)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [END]


@pytest.mark.smollm2
def test_smollm2s_template_renders_as_ours(smollm2_gguf: Path, tmp_path: Path):
    """A conversation has our ids, and every text too."""
    folder = written(smollm2_gguf, tmp_path / "out")
    assert_equal_tokenizers(smollm2_gguf, folder, NASTY_TEXTS)
    ours = open_checkpoint(smollm2_gguf)
    assert ours.chat_template is not None
    ids = ours.chat_template.encode(ours.tokenizer, MESSAGES)
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        MESSAGES, add_generation_prompt=True, return_dict=False
    )
    assert theirs == ids


@pytest.mark.parametrize("prefix", [False, True])
def test_a_sentencepiece_gguf_becomes_one_too(prefix: bool, tmp_path: Path):
    """BOS stands before every text, and SentencePiece itself has the same ids and texts."""
    oracle = trained_sentencepiece(prefix=prefix)
    parts = build_gguf_backend(gguf_of_sentencepiece(oracle, prefix=prefix))
    complete_tokenizer(parts).save(str(tmp_path / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("Hello world", " two  spaces", "a\nb", "日本語 🦉", "word word"):
        ids = oracle.encode(text)
        assert theirs(text)["input_ids"] == [oracle.bos_id(), *ids]
        assert theirs.decode(ids) == oracle.decode(ids)
