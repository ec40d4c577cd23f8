"""kvserve export: what it writes, and what it says when it cannot."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pytest
from onnx_runs import ExportedDecoder, onnxruntime_run
from transformers import AutoTokenizer
from typer.testing import CliRunner

from model.errors import CheckpointError, ExportError
from server import cli
from server.errors import ConfigurationError
from server.tools.export import export_command


def run(*arguments: object):
    return CliRunner().invoke(cli.app, ["export", *map(str, arguments)], env={"COLUMNS": "300"})


def test_a_folder_is_all_that_another_runtime_needs(script_gpt2: Path, tmp_path: Path):
    """With onnxruntime and transformers' tokenizer alone, the exported model writes its script."""
    folder = tmp_path / "exported"
    result = run("--model", script_gpt2, "--onnx", folder)
    assert result.exit_code == 0, result.output
    for name in ("model.onnx", "model.onnx_data", "tokenizer.json"):
        assert f"{folder / name}  {(folder / name).stat().st_size:,} bytes" in result.output
    tokenizer = AutoTokenizer.from_pretrained(folder)
    decoder = ExportedDecoder(onnxruntime_run(folder), (2, 4, 80))
    ids = tokenizer("A" * 65, add_special_tokens=False)["input_ids"]
    answer = []
    while len(answer) < 8:
        answer.append(int(decoder.step([ids])[0, -1].argmax()))
        ids = answer[-1:]
    assert tokenizer.decode(answer) == "page one"


def test_what_cannot_be_written_is_one_error(script_gpt2: Path, tmp_path: Path):
    """A folder that exists and a model that does not are the user's, and named."""
    assert isinstance(run("--model", script_gpt2, "--onnx", tmp_path).exception, ExportError)
    result = run("--model", tmp_path / "none.gguf", "--onnx", tmp_path / "out")
    assert isinstance(result.exception, CheckpointError)
    assert "none.gguf" in str(result.exception)


def test_without_onnx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The message says what to install, before a model is looked for."""
    monkeypatch.setattr(export_command, "find_spec", lambda name: None if name == "onnx" else util)
    with pytest.raises(ConfigurationError, match=r"needs onnx: pip install 'kvserve\[export\]'"):
        export_command.export(onnx=tmp_path / "out")
