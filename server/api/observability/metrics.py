"""Metrics: what GET /metrics shows, under the names that vLLM's dashboards look for.

Names, types and bounds are vLLM's; what is ours alone begins with kvserve. Everything is counted
elsewhere, by whoever knows it (RequestMeter, the engine's books, the access log), and only read
here when somebody asks, so a step of the engine costs the same whether anybody does or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from server.api.observability.distribution import cumulative
from server.api.observability.request_meter import RequestMeter
from server.api.protocols import EngineClient
from server.engine.timeline import STEP_SIZES
from server.engine_status import EngineStatus
from server.request import FinishReason

_ENGINE = "0"
"""There is one engine; vLLM numbers them."""
_LABELS = ("model_name", "engine")
_REASONS = tuple(FinishReason)


class Metrics(Collector):
    """All that can be seen of one server.

    Args:
        engine: Whose books are read.
    """

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self.requests = RequestMeter(engine)
        self.num_exchanges: Counter[tuple[str, str, str]] = Counter()
        """HTTP exchanges, by path as it is routed, method and status."""
        self.num_ignored_fields = 0
        """Fields of requests that were accepted and not looked at."""
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Everything as text, and its media type.

        Args:
            accept: Which form the client would like: Prometheus' own, or OpenMetrics.
        """
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type

    def collect(self) -> Iterator[Metric]:
        """Every family; those of the model once there is one."""
        exchanges = CounterMetricFamily(
            "http_requests", "HTTP requests answered.", labels=("handler", "method", "status")
        )
        for labels, count in sorted(self.num_exchanges.items()):
            exchanges.add_metric(labels, count)
        yield exchanges
        yield CounterMetricFamily(
            "kvserve:ignored_fields",
            "Request fields that were accepted and ignored, as X-Ignored-Fields names them.",
            value=self.num_ignored_fields,
        )
        if self._engine.status is not EngineStatus.LOADING:
            yield from self._gauges()
            yield from self._counters()
            yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        counts, info = self._engine.counts, self._engine.info
        for name, text, value in (
            ("num_requests_running", "Requests that hold a part of the cache.", counts.num_running),
            ("num_requests_waiting", "Requests that wait for one.", counts.num_waiting),
            ("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", counts.cache_usage),
        ):
            yield self._labelled(GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS), value)
        cache = {"block_size": str(info.block_size), "engine": _ENGINE,
                 "num_gpu_blocks": str(info.num_cache_tokens // info.block_size)}  # fmt: skip
        family = GaugeMetricFamily("vllm:cache_config_info", "The cache.", labels=tuple(cache))
        family.add_metric(tuple(cache.values()), 1)
        yield family

    def _counters(self) -> Iterator[Metric]:
        counts, totals = self._engine.counts, self._engine.timeline.totals
        tallies = self.requests.tallies
        for name, text, value in (
            ("prefix_cache_queries", "Prompt tokens looked for in the prefix cache.",
             totals.num_prefix_queried_tokens),
            ("prefix_cache_hits", "Prompt tokens found there.", totals.num_prefix_hit_tokens),
            ("num_preemptions", "Requests that had to give way.", counts.num_preemptions),
            ("spec_decode_num_drafts", "Drafts: tokens guessed ahead for one request in one step.",
             totals.num_drafts),
            ("spec_decode_num_draft_tokens", "Tokens that were guessed ahead and checked.",
             totals.num_drafted_tokens),
            ("spec_decode_num_accepted_tokens", "Those of them that came true.",
             totals.num_accepted_tokens),
            ("prompt_tokens", "Prompt tokens of complete calls, as in their usage.",
             tallies.num_prompt_tokens),
            ("generation_tokens", "Generated tokens of complete calls, as in their usage.",
             tallies.num_output_tokens),
        ):  # fmt: skip
            yield self._labelled(CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS), value)
        success = CounterMetricFamily(
            "vllm:request_success",
            "Requests that ended, one for each prompt and choice, by reason.",
            labels=(*_LABELS, "finished_reason"),
        )
        for reason in _REASONS:
            success.add_metric((*self._label_values, reason.value), tallies.num_finished[reason])
        yield success
        yield self._labelled(
            CounterMetricFamily(
                "kvserve:generated_tokens", "Tokens generated, as they come.", labels=_LABELS
            ),
            totals.num_generated_tokens,
        )

    def _histograms(self) -> Iterator[Metric]:
        tallies, limit = self.requests.tallies, self._engine.info.max_model_len
        for name, text, distribution in (
            ("time_to_first_token_seconds", "From arrival to the first token.",
             tallies.time_to_first_token),
            ("inter_token_latency_seconds", "Between tokens.", tallies.between_tokens),
            ("time_per_output_token_seconds", "Between tokens; the older name.",
             tallies.between_tokens),
            ("request_time_per_output_token_seconds", "Between tokens, the mean of a request.",
             tallies.per_output_token),
            ("e2e_request_latency_seconds", "From arrival to the end.", tallies.whole_time),
            ("request_queue_time_seconds", "From arrival to a first step.", tallies.queue_time),
            ("request_inference_time_seconds", "From there to the end.", tallies.inference_time),
            ("request_prefill_time_seconds", "From there to the first token.",
             tallies.prefill_time),
            ("request_decode_time_seconds", "From the first token to the end.",
             tallies.decode_time),
            ("request_params_n", "Choices asked for.", tallies.num_choices),
        ):  # fmt: skip
            yield self._histogram(name, text, distribution.buckets, total=distribution.sum)
        for name, text, distribution in (
            ("request_prompt_tokens", "Prompt tokens of a request.", tallies.prompt_tokens),
            ("request_generation_tokens", "Tokens a request generated.", tallies.output_tokens),
            ("request_params_max_tokens", "Tokens a request might generate.", tallies.max_tokens),
        ):
            buckets = [each for each in distribution.buckets if _is_shown(each[0], limit)]
            yield self._histogram(name, text, buckets, total=distribution.sum)
        timeline = self._engine.timeline
        yield self._histogram(
            "iteration_tokens_total",
            "Tokens computed in a step.",
            cumulative(STEP_SIZES, timeline.step_size_counts),
            total=timeline.totals.num_computed_tokens,
        )

    def _histogram(
        self, name: str, text: str, buckets: Iterable[tuple[str, float]], *, total: float
    ) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        family.add_metric(self._label_values, list(buckets), total)
        return family

    def _labelled(self, family: GaugeMetricFamily | CounterMetricFamily, value: float) -> Metric:
        family.add_metric(self._label_values, value)
        return family

    @property
    def _label_values(self) -> tuple[str, str]:
        return self._engine.info.model_name, _ENGINE


def _is_shown(bound: str, limit: int) -> bool:
    """Whether a number of tokens up to this bound can occur, or it is the last."""
    return float(bound) <= limit or bound == "+Inf"
