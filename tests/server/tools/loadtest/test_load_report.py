"""Reports have vLLM's names, and numbers that NumPy or a pencil confirms."""

import json

import numpy as np
import pytest

from server.errors import ConfigurationError
from server.tools.loadtest.load_generator import Load, LoadResult
from server.tools.loadtest.load_report import parse_limits, report
from server.tools.loadtest.stream_client import StreamRecord

# Of a result file of `vllm bench serve --save-result --save-detailed`.
VLLM_NAMES = {
    "date", "endpoint_type", "backend", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens",
    "total_output_tokens", "request_throughput", "request_goodput", "output_throughput",
    "total_token_throughput", "input_lens", "output_lens", "ttfts", "itls", "start_times",
    "errors", "max_concurrent_requests",
    *(f"{statistic}_{metric}_ms" for statistic in ("mean", "median", "std", "p99")
      for metric in ("ttft", "tpot", "itl", "e2el")),
}  # fmt: skip
FACTS = {"endpoint_type": "chat", "model_id": "m", "tokenizer_id": "m"}


def make_record(start: float, *gaps: float) -> StreamRecord:
    """A request sent at `start` whose tokens arrive after these gaps."""
    arrivals = (start + np.cumsum(gaps)).tolist()
    return StreamRecord(
        intended=start, sent=start, arrivals=arrivals, ended=arrivals[-1],
        prompt_tokens=10, completion_tokens=len(gaps),
    )  # fmt: skip


def make_report(*records: StreamRecord, limits: dict[str, float] | None = None):
    result = LoadResult(
        load=Load(concurrency=2), started=0.0, duration=4.0, records=list(records), cpu_share=0.1
    )
    return report(result, limits=limits or {}, facts=FACTS)


def failed(start: float, kind: str) -> StreamRecord:
    record = StreamRecord(intended=start, sent=start, ended=start + 1)
    record.fail(kind, "why")
    return record


def test_names_are_those_of_vllm():
    """Every name of vLLM's result file is there, and the whole is JSON."""
    made = make_report(make_record(0.0, 0.5, 0.1), failed(0.0, "timeout"))
    assert made.keys() >= VLLM_NAMES
    json.dumps(made, allow_nan=False)


def test_statistics_agree_with_numpy():
    """Means, medians and percentiles are NumPy's over the good requests."""
    generator = np.random.default_rng(5)
    gaps = generator.uniform(0.01, 0.5, (100, 7))
    made = make_report(*(make_record(0.1 * i, *row) for i, row in enumerate(gaps)))
    metrics = {
        "ttft": gaps[:, 0],
        "itl": gaps[:, 1:].ravel(),
        "tpot": gaps[:, 1:].mean(axis=1),
        "e2el": gaps.sum(axis=1),
    }
    for metric, values in metrics.items():
        assert made[f"mean_{metric}_ms"] == pytest.approx(1000 * values.mean())
        assert made[f"median_{metric}_ms"] == pytest.approx(1000 * np.median(values))
        assert made[f"std_{metric}_ms"] == pytest.approx(1000 * values.std())
        for percent in (90, 95, 99):
            expected = 1000 * np.percentile(values, percent)
            assert made[f"p{percent}_{metric}_ms"] == pytest.approx(expected)


def test_rates_count_good_requests_only():
    """Failures count as failures and in no rate."""
    made = make_report(make_record(0, 1, 1, 1), make_record(0, 1, 1), failed(0, "HTTP 429"),
                       failed(1, "HTTP 429"), failed(2, "timeout"))  # fmt: skip
    assert (made["completed"], made["failed"]) == (2, 3)
    assert made["errors_by_kind"] == {"HTTP 429": 2, "timeout": 1}
    assert made["request_throughput"] == 0.5
    assert made["output_throughput"] == 5 / 4
    assert made["total_token_throughput"] == 25 / 4
    assert made["max_concurrent_requests"] == 3


def test_goodput_counts_requests_within_every_limit():
    """A request is good if no limit is broken."""
    quick, slow_start, slow_end = (
        make_record(0, 0.1, 0.1), make_record(0, 0.9, 0.1), make_record(0, 0.1, 2.0)
    )  # fmt: skip
    limits = {"ttft": 500.0, "e2el": 1000.0}
    made = make_report(quick, slow_start, slow_end, limits=limits)
    assert made["request_goodput"] == 1 / 4
    assert make_report(quick)["request_goodput"] is None


def test_nothing_good_is_still_a_report():
    """A server that only fails is reported, not a crash."""
    made = make_report(failed(0, "connection refused"))
    assert (made["completed"], made["mean_ttft_ms"], made["tokens_per_chunk"]) == (0, None, None)


@pytest.mark.parametrize(
    ("count", "known"), [(8, ()), (10, (90,)), (99, (90, 95)), (100, (90, 95, 99))]
)
def test_percentiles_need_requests(count, known):
    """A percentile is told once one request can lie beyond it, however many chunks there were."""
    made = make_report(*(make_record(0, *[0.1] * 50) for _ in range(count)))
    for metric in ("ttft", "tpot", "itl", "e2el"):
        found = [percent for percent in (90, 95, 99) if made[f"p{percent}_{metric}_ms"] is not None]
        assert tuple(found) == known


def test_tokens_and_chunks_are_told_apart():
    """Four tokens a chunk of 100 ms are 25 ms a token."""
    record = make_record(0, 0.1, 0.1, 0.1, 0.1, 0.1)
    record.completion_tokens = 17  # one in the first chunk, then four in each
    made = make_report(record)
    assert made["median_itl_ms"] == pytest.approx(100)
    assert made["median_tpot_ms"] == pytest.approx(25)
    assert made["tokens_per_chunk"] == pytest.approx(17 / 5)


def test_what_did_not_happen_has_no_time():
    """One token has no further ones, so nothing is said of them."""
    made = make_report(make_record(0, 0.1))
    assert made["mean_ttft_ms"] == pytest.approx(100)
    assert (made["mean_tpot_ms"], made["mean_itl_ms"]) == (None, None)


def test_limits_are_read():
    """Limits are a metric, a colon and milliseconds."""
    assert parse_limits(["ttft:200", "e2el:1e3"]) == {"ttft": 200.0, "e2el": 1000.0}


@pytest.mark.parametrize("text", ["ttft", "ttft:x", "speed:3", "tpot:0", "tpot:-1"])
def test_broken_limits_are_refused(text):
    """What is no limit is named."""
    with pytest.raises(ConfigurationError, match=f"got {text}"):
        parse_limits([text])
