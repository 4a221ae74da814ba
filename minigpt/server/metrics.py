"""Counters and durations of the server, for Prometheus."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from minigpt.server.served_model import Models

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """What the server has done so far, and what its models do."""

    def __init__(self, models: Models, n_texts: Callable[[], int]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a time for each name, which nobody asks for
        self._models, self._n_texts, self._registry = models, n_texts, CollectorRegistry()
        self._registry.register(self)
        self.responses = self._counter("responses", "HTTP responses by path and status", "path", "status")
        self.prompt_tokens = self._counter("prompt_tokens", "tokens of prompts")
        self.generated_tokens = self._counter("generated_tokens", "tokens that were generated")
        self.cut_off = self._counter("cut_off", "requests whose client left before its answer")
        self.seconds = self._histogram("request", "time to answer a request that generates")
        self.first_token = self._histogram("first_token", "time to the first token of a request")
        self.between_tokens = self._histogram("between_tokens", "time between steps that gave a request tokens")

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"minigpt_{name}", description, labels, registry=self._registry)

    def _histogram(self, name: str, description: str) -> Histogram:
        return Histogram(f"minigpt_{name}_seconds", description, buckets=_SECONDS, registry=self._registry)

    def collect(self) -> Iterator[Metric]:
        """The numbers that the models keep, as the registry asks for them."""
        batches = [model.batch for model in self._models.all]
        running, size = sum(each.n_running for each in batches), sum(each.prefixes.n_bytes for each in batches)
        read, cached = sum(each.n_prompt_tokens for each in batches), sum(each.n_cached_tokens for each in batches)
        yield GaugeMetricFamily(
            "minigpt_texts", "texts that are being generated or wait for their turn", self._n_texts()
        )
        yield GaugeMetricFamily("minigpt_running", "texts in the batches", running)
        yield GaugeMetricFamily("minigpt_prefix_cache_bytes", "size of the prefix caches", size)
        yield CounterMetricFamily("minigpt_prompt_tokens_read", "tokens of prompts that the models have read", read)
        yield CounterMetricFamily("minigpt_prompt_tokens_cached", "tokens of prompts from the prefix caches", cached)

    def text(self) -> bytes:
        """All of it in Prometheus' form."""
        return generate_latest(self._registry)
