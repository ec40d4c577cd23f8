"""server.engine.fingerprint: equal bits have equal names, and whatever changes them another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engines import load_engine

from server.config import ServerConfig
from server.engine.fingerprint import files_digest, fingerprint


@pytest.fixture
def loaded(checkpoint_copy):
    """A small checkpoint of the test's own."""
    path = checkpoint_copy("rand-llama-tied")
    return path, load_engine(path).info


def test_the_same_engine_has_the_same_name(loaded):
    """Threads, seats and addresses change no bit and no name."""
    _, info = loaded
    name = fingerprint(info, ServerConfig())
    assert name is not None
    assert name == fingerprint(info, ServerConfig(threads=7, max_num_seqs=3, port=1))
    assert name == fingerprint(replace(info, num_threads=9), ServerConfig())


def test_what_changes_bits_changes_the_name(loaded):
    """A byte of the weights, another instruction set, another rounding: another name."""
    path, info = loaded
    names = {
        fingerprint(info, ServerConfig()),
        fingerprint(replace(info, kernels="portable"), ServerConfig()),
        fingerprint(replace(info, max_model_len=99), ServerConfig()),
        fingerprint(info, ServerConfig(quantize="int8")),
        fingerprint(info, ServerConfig(block_size=32)),
    }
    weights = path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    names.add(fingerprint(info, ServerConfig()))
    assert len(names) == 6
    assert None not in names


@pytest.mark.parametrize("other", [{"kernels": "torch"}, {"device": "cuda"}])
def test_no_bits_are_promised_elsewhere(loaded, other):
    """An engine whose bits depend on its company has no name."""
    _, info = loaded
    assert fingerprint(replace(info, **other), ServerConfig()) is None


def test_names_of_files_count(tmp_path):
    """The same contents under other names are another folder."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.bin").write_bytes(b"same")
    assert files_digest(tmp_path / "a") != files_digest(tmp_path / "b")
    assert files_digest(tmp_path / "a" / "a.bin") == files_digest(tmp_path / "b" / "b.bin")
