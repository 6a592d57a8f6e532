"""Counts for Prometheus."""

import numpy as np
import prometheus_client

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
PREFIX = "keras_transformer"


class Metrics:
    """The metrics of a server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()

        def metric(kind, name, help, labels, **arguments):
            return kind(
                f"{PREFIX}_{name}",
                help,
                labels,
                registry=self.registry,
                **arguments,
            )

        counter, gauge, histogram = (
            prometheus_client.Counter,
            prometheus_client.Gauge,
            prometheus_client.Histogram,
        )
        model = ["model", "version"]
        self.requests = metric(
            counter,
            "requests",
            "Requests, by protocol and status",
            ["protocol", "status"],
        )
        self.latency = metric(
            histogram,
            "request_seconds",
            "Time from a request to its answer",
            ["protocol"],
            buckets=LATENCY_BUCKETS,
        )
        self.rows = metric(counter, "rows", "Texts that were computed", model)
        self.source_bytes = metric(
            counter, "source_bytes", "Bytes of the texts computed", model
        )
        self.target_words = metric(
            counter, "target_words", "Words of the translations", model
        )
        self.queue_rows = metric(
            gauge, "queue_rows", "Texts that wait now", model
        )
        self.batch_rows = metric(
            histogram,
            "batch_rows",
            "Texts of a batch",
            model,
            buckets=ROW_BUCKETS,
        )
        self.batch_seconds = metric(
            histogram,
            "batch_seconds",
            "Time to compute a batch",
            model,
            buckets=LATENCY_BUCKETS,
        )

    def queued(self, labels: tuple[str, int], rows: int) -> None:
        """Notes how many texts wait for a model's version, its `labels`."""
        self.queue_rows.labels(*labels).set(rows)

    def batch_begun(
        self, labels: tuple[str, int], batch: list, waiting: int
    ) -> None:
        """Notes a batch that is about to be computed."""
        rows = sum(item.rows for item in batch)
        self.queue_rows.labels(*labels).set(waiting)
        self.rows.labels(*labels).inc(rows)
        self.batch_rows.labels(*labels).observe(rows)
        self.source_bytes.labels(*labels).inc(sum(item.bytes for item in batch))

    def batch_ended(
        self, labels: tuple[str, int], outputs: dict, seconds: float
    ) -> None:
        """Notes a batch that was computed, with its outputs."""
        self.batch_seconds.labels(*labels).observe(seconds)
        texts = outputs.get("translation", np.array([], object))
        words = sum(len(text.split()) for text in texts.flat)
        self.target_words.labels(*labels).inc(words)

    def text(self) -> bytes:
        """Returns all metrics in the format of Prometheus."""
        return prometheus_client.generate_latest(self.registry)
