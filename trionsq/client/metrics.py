"""Prometheus metrics of handlers, by the package prometheus-client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from trionsq.client.decisions import AnyMessage, HandlerContext
from trionsq.client.middleware import Middleware, around

__all__ = ["HandlerMetrics"]


class HandlerMetrics:
    """Counts and times the handlers of a process; `measure` is the middleware, `context` the one of
    handlers in threads.

    - ``nsq_handled_messages_total``: by ``outcome``: ``handled``, ``failed`` (the handler raised),
      ``cancelled``. What a `retry` inside of `measure` requeues is ``requeued``.
    - ``nsq_handler_seconds``: a histogram of the time in the handler.
    - ``nsq_handlers_running``: how many run now.

    Each has the labels ``topic`` and ``channel``.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Args:
            registry: gets the metrics.

        Raises:
            ValueError: it has them already: make one of these objects for each registry.
        """
        labels = ("topic", "channel")
        self._handled = Counter(
            "nsq_handled_messages", "Messages by outcome", (*labels, "outcome"), registry=registry
        )
        self._seconds = Histogram(
            "nsq_handler_seconds", "Time in the handler", labels, registry=registry
        )
        self._running = Gauge("nsq_handlers_running", "Running handlers", labels, registry=registry)

    def measure(self, topic: str, channel: str) -> Middleware:
        """The middleware for the handler of this topic and channel."""
        return around(self.context(topic, channel))

    def context(self, topic: str, channel: str) -> HandlerContext:
        """The same for a handler in threads: ``around(metrics.context("orders", "billing"))``, by
        `trionsq.client.blocking.middleware.around`."""
        seconds = self._seconds.labels(topic, channel)
        running = self._running.labels(topic, channel)
        handled, requeued, failed, cancelled = (
            self._handled.labels(topic, channel, outcome)
            for outcome in ("handled", "requeued", "failed", "cancelled")
        )

        @contextmanager
        def measured(message: AnyMessage) -> Iterator[None]:
            begun_s = time.perf_counter()
            running.inc()
            try:
                yield
            except Exception:
                failed.inc()
                raise
            except BaseException:
                cancelled.inc()
                raise
            else:
                is_requeued = not message.is_open and not message.was_finished
                (requeued if is_requeued else handled).inc()
            finally:
                running.dec()
                seconds.observe(time.perf_counter() - begun_s)

        return measured
