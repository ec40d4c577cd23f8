"""Perplexity and divergence are those that transformers' log-probabilities give."""

from __future__ import annotations

import json
import math

import checkpoints
import pytest
import torch
from engines import load_engine, make_request
from typer.testing import CliRunner

from server.cli import app
from server.errors import ConfigurationError
from server.tools.perplexity.perplexity import PerplexityMeter, Window, windows

TEXT = [(31 * i + i * i) % 250 for i in range(150)]


def expected_losses(path, *, window, stride):
    """The losses of TEXT's tokens by transformers, from the same windows."""
    model = checkpoints.reference(path)
    losses = {}
    for start in range(0, len(TEXT), stride):
        part = TEXT[start : start + window]
        logprobs = checkpoints.reference_logprobs(model, part)
        for offset, target in enumerate(part[1:], start=1):
            losses.setdefault(start + offset, -logprobs[offset - 1, target].item())
        if start + window >= len(TEXT):
            break
    return torch.tensor([losses[i] for i in range(1, len(TEXT))], dtype=torch.float64)


@pytest.mark.parametrize(("window", "stride"), [(200, 100), (40, 17), (40, 39)])
def test_perplexity_equals_transformers(checkpoint, window, stride):
    """Every token is scored once, in the first window that holds it, as transformers scores it."""
    path = checkpoint("rand-llama-untied")
    loaded = load_engine(path, max_num_batched_tokens=23)
    found = PerplexityMeter(loaded, window=window, stride=stride).measure(TEXT)
    expected = expected_losses(path, window=window, stride=stride)
    assert torch.cat(found.losses).tolist() == pytest.approx(expected.tolist(), abs=1e-3)
    figures = found.to_json()
    assert figures["num_tokens"] == len(TEXT) - 1
    assert figures["perplexity"] == pytest.approx(math.exp(expected.mean()), rel=1e-4)
    assert "kl_mean" not in figures
    assert not loaded.engine.has_work
    assert loaded.engine.scheduler.manager.usage == 0


def test_a_model_does_not_diverge_from_itself(checkpoint):
    """Against itself the divergence is exactly 0 and every likeliest token the same."""
    path = checkpoint("rand-llama-tied")
    meter = PerplexityMeter(load_engine(path), reference=load_engine(path), window=64, stride=32)
    figures = meter.measure(TEXT).to_json()
    assert figures["kl_mean"] == figures["kl_max"] == 0.0
    assert figures["same_top_token"] == 1.0
    assert figures["reference"]["perplexity"] == figures["perplexity"]


def test_divergence_equals_transformers(checkpoint):
    """The divergence of one model from another is that of their distributions in transformers."""
    paths = [checkpoint("rand-llama-tied"), checkpoint("rand-llama-untied")]
    run, reference = (
        checkpoints.reference_logprobs(checkpoints.reference(path), TEXT)[:-1].double()
        for path in paths
    )
    loaded, other = (load_engine(path, max_num_batched_tokens=64) for path in paths)
    meter = PerplexityMeter(loaded, reference=other, window=200, stride=100)
    figures = meter.measure(TEXT).to_json()
    divergences = (reference.exp() * (reference - run)).sum(-1)
    assert figures["kl_mean"] == pytest.approx(divergences.mean().item(), rel=1e-3)
    assert figures["kl_max"] == pytest.approx(divergences.max().item(), rel=1e-3)
    same = (run.argmax(-1) == reference.argmax(-1)).double().mean().item()
    assert figures["same_top_token"] == pytest.approx(same)


def test_windows_cover_a_text_once():
    """Windows overlap, and the tokens they score follow one another to the end."""
    assert list(windows(10, size=6, stride=3)) == [
        Window(0, 6, 0),
        Window(3, 9, 6),
        Window(6, 10, 9),
    ]
    assert list(windows(4, size=6, stride=3)) == [Window(0, 4, 0)]


def test_an_opening_token_predicts_the_first(checkpoint, monkeypatch):
    """Where the model expects a token before any text, that token precedes every window."""
    path = checkpoint("rand-llama-tied")
    loaded = load_engine(path)
    monkeypatch.setattr(type(loaded.tokenizer), "encode", lambda self, text, **_: [checkpoints.BOS])
    found = PerplexityMeter(loaded, window=200, stride=100).measure(TEXT)
    logprobs = checkpoints.reference_logprobs(checkpoints.reference(path), [checkpoints.BOS, *TEXT])
    expected = [-logprobs[i, token].item() for i, token in enumerate(TEXT)]
    assert torch.cat(found.losses).tolist() == pytest.approx(expected, abs=1e-3)


def test_logits_need_an_idle_engine(checkpoint):
    """Logits of a text are refused beside other requests, and a closed iterator frees all."""
    engine = load_engine(checkpoint("rand-llama-tied"), max_num_batched_tokens=16).engine
    slices = engine.text_logits(TEXT[:50])
    assert next(slices)[0] == range(16)
    slices.close()
    assert not engine.has_work
    assert engine.scheduler.manager.usage == 0
    engine.add(make_request([1]))
    with pytest.raises(ValueError, match="without requests"):
        next(engine.text_logits(TEXT))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"window": 1, "stride": 1}, "--window must be from 2 to 512"),
        ({"window": 513, "stride": 1}, "--window must be from 2 to 512"),
        ({"window": 64, "stride": 65}, "--stride must be from 1 to 64"),
    ],
)
def test_sizes_out_of_bounds_are_refused(checkpoint, sizes, message):
    """Windows must fit the model, and no token may be passed over."""
    loaded = load_engine(checkpoint("rand-llama-tied"))
    with pytest.raises(ConfigurationError, match=message):
        PerplexityMeter(loaded, **sizes)


def test_the_command_prints_and_writes_figures(checkpoint, tmp_path):
    """bfloat16 weights read a text nearly as float32 ones do, as a table and as JSON."""
    text, file = tmp_path / "text.txt", tmp_path / "found.json"
    text.write_text("It was a dark and stormy night; the rain fell in torrents.", encoding="utf-8")
    arguments = ["--model", str(checkpoint("rand-llama-tied")), "--text", str(text)]
    options = ["--reference", "float32", "--dtype", "bfloat16", "--threads", "1"]
    result = CliRunner().invoke(app, ["perplexity", *arguments, *options, "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "mean KL divergence" in result.output
    found = json.loads(file.read_text())
    assert (found["dtype"], found["reference_dtype"], found["window"]) == (
        "bfloat16",
        "float32",
        512,
    )
    assert 0 < found["kl_mean"] < 0.01


def test_a_text_that_cannot_be_read_is_named(tmp_path):
    """A missing file, or one that is not UTF-8, is an error that names it."""
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing.txt", broken):
        result = CliRunner().invoke(app, ["perplexity", "--text", str(path)])
        assert str(path) in str(result.exception)
