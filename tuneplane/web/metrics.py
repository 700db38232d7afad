"""Prometheus metrics of the web room, in a registry of their own so that one process can run several."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector, generate_latest

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 45.0)  # from a look at one row to the request deadline


class Metrics:
    """Counts by route template, never by path: labels are bounded by the route table."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.requests = Counter("tuneplane_http_requests", "Requests answered", ["method", "route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "tuneplane_http_request_seconds", "Time to the answer's head", ["route"], buckets=BUCKETS, registry=self.registry
        )
        self.connections = Gauge("tuneplane_http_connections", "Open connections", registry=self.registry)
        self.refused_connections = Counter(
            "tuneplane_http_connections_refused", "Connections closed at once: too many were open", registry=self.registry
        )
        self.streams = Gauge("tuneplane_http_event_streams", "Open event streams", registry=self.registry)
        self.ready = Gauge("tuneplane_ready", "1 when the last readiness check passed", registry=self.registry)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
