"""Counters and durations of the server, in the text form of Prometheus."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

Metric = tuple[str, str, str, int]

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """Counts durations in seconds by size."""

    def __init__(self, bounds: Sequence[float] = _SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    @property
    def mean(self) -> float:
        """The mean duration; 0 if there was none."""
        return self.sum / max(1, sum(self.counts))

    def lines(self, name: str) -> Iterator[str]:
        """The histogram in Prometheus' form."""
        total = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum:.6f}"
        yield f"{name}_count {total}"


class Metrics:
    """What the server has done so far."""

    def __init__(self) -> None:
        self.responses: Counter[tuple[str, int]] = Counter()  # by path and status
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.cut_off = 0  # requests whose client left before the answer was complete
        self.seconds = Histogram()  # of whole requests that generate
        self.first_token = Histogram()
        self.between_tokens = Histogram()

    def text(self, further: Sequence[Metric]) -> str:
        """All metrics, and further ones by name, kind, description and value."""
        return "\n".join([*self._lines(further), ""])

    def _lines(self, further: Sequence[Metric]) -> Iterator[str]:
        yield from _heading("minigpt_responses_total", "counter", "HTTP responses by path and status")
        for (path, status), count in sorted(self.responses.items()):
            yield f'minigpt_responses_total{{path="{path}",status="{status}"}} {count}'
        own: tuple[Metric, ...] = (
            ("minigpt_prompt_tokens_total", "counter", "tokens of prompts", self.prompt_tokens),
            ("minigpt_generated_tokens_total", "counter", "tokens that were generated", self.generated_tokens),
            ("minigpt_cut_off_total", "counter", "requests whose client left before its answer", self.cut_off),
        )
        for name, kind, description, value in (*own, *further):
            yield from _heading(name, kind, description)
            yield f"{name} {value}"
        histograms = (
            ("minigpt_request_seconds", "time to answer a request that generates", self.seconds),
            ("minigpt_first_token_seconds", "time to the first token of a request", self.first_token),
            (
                "minigpt_between_tokens_seconds",
                "time between steps that gave a request tokens",
                self.between_tokens,
            ),
        )
        for name, description, histogram in histograms:
            yield from _heading(name, "histogram", description)
            yield from histogram.lines(name)


def _heading(name: str, kind: str, description: str) -> tuple[str, str]:
    return f"# HELP {name} {description}", f"# TYPE {name} {kind}"
