"""What the server counts, in Prometheus' terms."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Requests, their latency, the queue, the batches, and the texts and tokens embedded; also memory and CPU
    of the process."""

    def __init__(self, waiting_texts: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "edgedistill_requests_total",
            "Answered embedding requests, by HTTP status (499: the client left)",
            ["status"],
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "edgedistill_request_seconds",
            "From a request's headers to its answer, of those with status 200",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batch_texts = Histogram(
            "edgedistill_batch_texts", "Texts per batch", buckets=TEXTS, registry=self.registry
        )
        self.texts = Counter("edgedistill_texts_total", "Embedded texts", registry=self.registry)
        self.tokens = Counter(
            "edgedistill_tokens_total", "Embedded tokens, without padding", registry=self.registry
        )
        Gauge("edgedistill_queue_texts", "Texts waiting for a batch", registry=self.registry).set_function(
            waiting_texts
        )
        ProcessCollector(registry=self.registry)

    def batch(self, texts: int, tokens: int) -> None:
        """Count one batch."""
        self.batch_texts.observe(texts)
        self.texts.inc(texts)
        self.tokens.inc(tokens)
