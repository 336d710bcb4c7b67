"""What an operator measures, in the form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from framework.execution.payloads import AudioChunk, TextChunk
from framework.execution.request import Result
from framework.serve.flight import Flight

MEDIA_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def seconds(name: str, help_: str, *labels: str) -> Histogram:
            return Histogram(f"multistage_{name}", help_, labels, registry=registry, buckets=_SECONDS)

        self.answers = Counter(
            "multistage_answers", "Answers by endpoint and status", ("path", "status"), registry=registry
        )
        self.requests = Counter(
            "multistage_requests", "Requests that the engines ended", ("model", "end"), registry=registry
        )
        self.tokens = Counter("multistage_tokens", "Tokens read and written", ("model", "kind"), registry=registry)
        self.sound = Counter("multistage_sound_seconds", "Seconds of sound made", ("model",), registry=registry)
        self.first_token = seconds("first_token_seconds", "Request to first text", "model")
        self.first_sound = seconds("first_sound_seconds", "Request to first sound", "model")
        self.whole = seconds("request_seconds", "Request to its end", "model")
        self.stage_busy = Counter(
            "multistage_stage_busy_seconds",
            "Time in steps, once for each request in them",
            ("model", "stage"),
            registry=registry,
        )
        self.stage_steps = Counter(
            "multistage_stage_steps", "Steps, once for each request in them", ("model", "stage"), registry=registry
        )
        self._active = Gauge("multistage_active_requests", "Requests that have a place", ("model",), registry=registry)
        self._waiting = Gauge("multistage_waiting_requests", "Requests in the queue", ("model",), registry=registry)
        self._rows = Gauge("multistage_rows", "Requests that run together at most", ("model",), registry=registry)

    def watch(self, model: str, rows: int, under_way: Callable[[], int]) -> None:
        """Report how many requests of a deployment are there whenever the numbers are asked for."""
        self._rows.labels(model).set(rows)
        self._active.labels(model).set_function(lambda: min(rows, under_way()))
        self._waiting.labels(model).set_function(lambda: max(0, under_way() - rows))

    def ended(self, model: str, flight: Flight, result: Result) -> None:
        end = "ok" if result.ok else "cancelled" if result.cancelled else "failed"
        self.requests.labels(model, end).inc()
        self.whole.labels(model).observe(result.wall_s)
        if (first := flight.first.get(TextChunk)) is not None:
            self.first_token.labels(model).observe(first)
        if (first := flight.first.get(AudioChunk)) is not None:
            self.first_sound.labels(model).observe(first)
        for stage, report in result.stages.items():
            self.stage_busy.labels(model, stage).inc(report.busy_s)
            self.stage_steps.labels(model, stage).inc(report.steps)
            for kind, key in (("prompt", "prompt_tokens"), ("generated", "generated_tokens")):
                if count := report.details.get(key):
                    self.tokens.labels(model, kind).inc(count)
        for chunks in result.outputs.values():
            sounds = [chunk for chunk in chunks if isinstance(chunk, AudioChunk)]
            self.sound.labels(model).inc(sum(len(s.samples) / s.sample_rate for s in sounds))

    def text(self) -> bytes:
        return generate_latest(self.registry)
