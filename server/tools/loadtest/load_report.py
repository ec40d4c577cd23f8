"""The report of a load test: what was measured, under the names that vLLM's benchmark writes.

So scripts that read the one read the other. What vLLM does not have (errors by kind, the client's
own processor time, lateness) stands beside it under names of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

import numpy as np

from server.errors import ConfigurationError
from server.tools.loadtest.load_generator import LoadResult
from server.tools.loadtest.stream_client import StreamRecord

METRICS = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = (90, 95, 99)
Limits = Mapping[str, float]
"""Metric -> milliseconds that a good request stays within."""


def parse_limits(texts: Iterable[str]) -> dict[str, float]:
    """Read limits such as "ttft:200".

    Raises:
        ConfigurationError: One is malformed.
    """
    limits = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = -1.0
        if name not in ("ttft", "tpot", "e2el") or limits[name] <= 0:
            raise ConfigurationError(
                f"--goodput: expected ttft, tpot or e2el, a colon and milliseconds (got {text})"
            )
    return limits


def report(result: LoadResult, *, limits: Limits, facts: Mapping[str, object]) -> dict[str, object]:
    """Make the report of one level of load.

    Args:
        result: What was measured.
        limits: What a request must stay within to count as good; empty for no such count.
        facts: More entries, such as the model's name.

    Returns:
        A dictionary ready for JSON; seconds in lists, milliseconds in statistics, as in vLLM's.
    """
    good = [record for record in result.records if record.error is None]
    errors = Counter(record.error for record in result.records if record.error is not None)
    num_output = sum(record.output_tokens for record in good)
    num_input = sum(record.prompt_tokens or 0 for record in good)
    return {
        "date": datetime.now().astimezone().strftime("%Y%m%d-%H%M%S"),
        "backend": "openai",
        **facts,
        "num_prompts": len(result.records),
        "request_rate": "inf" if result.load.rate is None else result.load.rate,
        "burstiness": result.load.burstiness,
        "max_concurrency": result.load.concurrency,
        "duration": result.duration,
        "completed": len(good),
        "failed": len(result.records) - len(good),
        "unfinished": result.num_unfinished,
        "sent_again": sum(record.num_sendings > 1 for record in result.records),
        "tokens_per_chunk": _tokens_per_chunk(good),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / result.duration,
        "request_goodput": _goodput(good, limits) / result.duration if limits else None,
        "output_throughput": num_output / result.duration,
        "total_token_throughput": (num_input + num_output) / result.duration,
        "max_concurrent_requests": _most_at_once(result.records),
        **_all_statistics(good),
        "errors_by_kind": dict(errors),
        "client_cpu_share": result.cpu_share,
        "send_lateness_p99_ms": _percentile(
            [1000 * late for late in result.lateness], 99, of=len(result.lateness)
        ),
        "warning": result.warning,
        "input_lens": [record.prompt_tokens for record in result.records],
        "output_lens": [record.output_tokens for record in result.records],
        "start_times": [record.start - result.started for record in result.records],
        "ttfts": [record.ttft if record.arrivals else None for record in result.records],
        "itls": [record.gaps for record in result.records],
        "errors": [record.detail if record.error else "" for record in result.records],
    }


def _all_statistics(good: list[StreamRecord]) -> dict[str, float | None]:
    """Mean, median, deviation and percentiles of every metric, in milliseconds.

    What was not measured is None, and so is a percentile of fewer requests than it takes for one
    of them to lie beyond it.
    """
    values: dict[str, list[float]] = {
        "ttft": [record.ttft for record in good],
        "tpot": [record.tpot for record in good if record.tpot is not None],
        "itl": [gap for record in good for gap in record.gaps],
        "e2el": [record.latency for record in good],
    }
    num_requests = {
        "tpot": len(values["tpot"]),
        "itl": sum(bool(record.gaps) for record in good),
    }
    statistics: dict[str, float | None] = {}
    for name, seconds in values.items():
        times = 1000 * np.array(seconds)
        measured = len(times) > 0
        statistics[f"mean_{name}_ms"] = float(times.mean()) if measured else None
        statistics[f"median_{name}_ms"] = float(np.median(times)) if measured else None
        statistics[f"std_{name}_ms"] = float(times.std()) if measured else None
        for percent in PERCENTILES:
            statistics[f"p{percent}_{name}_ms"] = _percentile(
                times.tolist(), percent, of=num_requests.get(name, len(good))
            )
    return statistics


def requests_needed(percent: int) -> int:
    """Requests from which on one of them lies beyond a percentile."""
    return -(-100 // (100 - percent))


def _percentile(values: list[float], percent: int, *, of: int) -> float | None:
    """The percentile of values that come from so many requests; None if those are too few."""
    return float(np.percentile(values, percent)) if of >= requests_needed(percent) else None


def _tokens_per_chunk(good: list[StreamRecord]) -> float | None:
    """Tokens that arrive together on average; None if nothing arrived."""
    chunks = sum(len(record.arrivals) for record in good)
    return sum(record.output_tokens for record in good) / chunks if chunks else None


def _goodput(good: list[StreamRecord], limits: Limits) -> int:
    """How many requests stayed within every limit."""

    def within(record: StreamRecord) -> bool:
        seconds = {"ttft": record.ttft, "tpot": record.tpot or 0.0, "e2el": record.latency}
        return all(1000 * seconds[name] <= limit for name, limit in limits.items())

    return sum(map(within, good))


def _most_at_once(records: list[StreamRecord]) -> int:
    """The most requests that were under way at any moment."""
    changes = sorted(
        [(record.sent, 1) for record in records] + [(record.ended, -1) for record in records]
    )
    return int(np.cumsum([change for _, change in changes]).max()) if changes else 0
