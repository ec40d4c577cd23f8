"""The check of the one-answer contract passes where it holds, and finds what breaks it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from model.executors.executor import Ready
from model.native_library import load_kernels
from server.cli import app
from server.config import EngineConfig
from server.engine.loaded_engine import build_engine
from server.request import Logprob
from server.tools.verify.verify import ProbeAnswer, TrialResult, Verification, differences

needs_kernels = pytest.mark.skipif(
    load_kernels(threads=1)[0] is None, reason="the native kernels were not built"
)


def config_of(path, **options: object) -> EngineConfig:
    return EngineConfig(model=str(path), threads=2, **options)


@needs_kernels
@pytest.mark.parametrize(
    "name", ["rand-llama-tied", pytest.param("rand-gemma3", marks=pytest.mark.slow)]
)
def test_the_kernels_keep_the_contract(checkpoint, name):
    """Every trial is made, on random models, and finds no difference."""
    results = list(Verification(config_of(checkpoint(name))).run())
    assert [result.differences for result in results] == [[]] * len(results)
    assert all(result.num_answers >= 3 for result in results)
    assert {r.group for r in results} == {
        *("alone", "prefix", "cache", "company", "chunks", "preemption", "drafts", "threads")
    }
    notes = {result.group: result.note for result in results}
    assert int(notes["prefix"].split()[0]) > 0
    assert int(notes["preemption"].split()[0]) > 0


@needs_kernels
def test_a_fault_of_one_bit_is_found(checkpoint):
    """Logits that are one unit in the last place off in a crowd are found and named."""

    def faulty(config):
        loaded = build_engine(config)
        submit = loaded.engine._runner.submit

        def nudged(batch):
            output = submit(batch).result()
            if len(output.logits) < 9:
                return Ready(output)
            return Ready(output._replace(logits=output.logits * (1 + 2**-20)))

        loaded.engine._runner.submit = nudged
        return loaded

    verification = Verification(config_of(checkpoint("rand-llama-tied")), build=faulty)
    broken = next(result for result in verification.run() if result.differences)
    assert "31 others" in broken.condition
    assert 0 < broken.largest < 1e-3
    assert "alone" in str(broken.differences[0])


@needs_kernels
def test_a_lost_token_is_found(checkpoint):
    """A prefix cache that gives back another's keys is found, with the trial that shows it."""

    def faulty(config):
        loaded = build_engine(config)
        pool = loaded.engine._runner._executor.pool
        submit = loaded.engine._runner.submit

        def spoiled(batch):
            if any(entry.request.num_cached_tokens for entry in batch.scheduled):
                pool.storage[:, :, batch.scheduled[0].request.region.block_ids[0]] += 0.5
            return submit(batch)

        loaded.engine._runner.submit = spoiled
        return loaded

    verification = Verification(config_of(checkpoint("rand-llama-tied")), build=faulty)
    broken = next(result for result in verification.run() if result.differences)
    assert broken.group == "prefix"


def test_torch_is_judged_by_its_own_promise(checkpoint, tmp_path, monkeypatch):
    """On the torch path the command reports the largest difference and what torch promises."""
    file = tmp_path / "found.json"
    monkeypatch.setattr("server.tools.verify.verify.ANSWER_TOKENS", 4)
    arguments = ["--model", str(checkpoint("rand-llama-tied")), "--kernels", "off"]
    result = CliRunner().invoke(app, ["verify", *arguments, "--threads", "1", "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "torch computes" in result.output
    found = json.loads(file.read_text())
    assert found["kernels"] == "torch"
    assert max(trial["largest_difference"] for trial in found["trials"]) < 1e-3


@needs_kernels
def test_the_command_fails_with_the_first_difference(checkpoint, monkeypatch):
    """The command's exit code is 1 and its last line the difference."""
    alone = ProbeAnswer("probe", [1], [Logprob(1, -0.5)])
    here = ProbeAnswer("probe", [1], [Logprob(1, -0.25)])
    broken = TrialResult(condition="in company", group="company", num_answers=1)
    broken.differences = differences(alone, here)
    monkeypatch.setattr(Verification, "run", lambda self: iter([broken]))
    arguments = ["--model", str(checkpoint("rand-llama-tied")), "--threads", "1"]
    result = CliRunner().invoke(app, ["verify", *arguments])
    assert result.exit_code == 1
    assert "token 1 at -0.5 alone, token 1 at -0.25 here" in result.output


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"token_ids": [1, 3]}, "token_ids"),
        ({"text": "other"}, "text"),
        ({"error": "broken"}, "outcome"),
        ({"logprobs": []}, "number of answer tokens"),
        ({"logprobs": [Logprob(1, -1.0, ((1, -1.0), (5, -2.5)))]}, "answer token 0"),
        ({"prompt_logprobs": [Logprob(4, -3.0)]}, "prompt token 0"),
    ],
)
def test_every_part_of_an_answer_is_compared(change, place):
    """Tokens, text, errors, log-probabilities and those of alternatives and prompts all count."""
    alone = ProbeAnswer(
        "probe",
        token_ids=[1],
        logprobs=[Logprob(1, -1.0, ((1, -1.0), (5, -2.0)))],
        prompt_logprobs=[Logprob(4, -2.0)],
        text="text",
    )
    assert differences(alone, alone) == []
    found = differences(alone, replace(alone, **change))
    assert [difference.place for difference in found] == [place]
