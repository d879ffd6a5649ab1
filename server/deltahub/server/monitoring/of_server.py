"""Metrics of this server: its requests, connections, turns and caches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from prometheus_client.core import InfoMetricFamily, Metric

from deltahub.registry.monitoring.families import counter, gauge, histogram
from deltahub.registry.reports.hub_totals import connections_in_use
from deltahub.server.connections.exchanges import Exchanges
from deltahub.server.connections.limits import ConnectionLimits
from deltahub.server.hub import Hub
from deltahub.server.monitoring.requests import BOUNDS_S, RequestCounts
from deltahub.server.streaming.client_slots import FairQueue

_ROUTE: Final = ("door", "route")


@dataclass
class Watched:
    """What a running server has besides its hub; None where an application runs without one."""

    exchanges: Exchanges | None = None
    connections: ConnectionLimits | None = None


def server_families(hub: Hub, requests: RequestCounts, watched: Watched) -> Iterator[Metric]:
    yield InfoMetricFamily("deltahub_build", "The release.", {"version": version("deltahub")})
    yield from _request_families(requests)
    yield from _connection_families(hub, watched)
    yield from _turn_families(hub)
    yield from _cache_families(hub)
    yield gauge(
        "deltahub_database_connections_in_use",
        "Connections of this server to the database that are in use.",
        ("pool",),
        {(name,): n for name, n in connections_in_use(hub.registry).items()},
    )


def _request_families(requests: RequestCounts) -> Iterator[Metric]:
    yield counter(
        "deltahub_http_requests",
        "Requests that were answered. Route none: no route had that path.",
        (*_ROUTE, "method", "status"),
        requests.requests.read(),
    )
    yield histogram(
        "deltahub_http_request_duration_seconds",
        "From the headers of a request to the end of its answer.",
        _ROUTE,
        BOUNDS_S,
        requests.seconds.read(),
    )
    yield counter(
        "deltahub_http_response_body_bytes",
        "Bytes of the bodies of answers.",
        ("door",),
        requests.body_bytes.read(),
    )


def _connection_families(hub: Hub, watched: Watched) -> Iterator[Metric]:
    traffic = hub.traffic
    yield counter(
        "deltahub_http_refused_requests",
        "Requests that were refused before a route was looked for, by the code of the error.",
        ("code",),
        {(code,): n for code, n in dict(traffic.refused).items()},
    )
    yield counter("deltahub_received_bytes", "Bytes that clients sent.", (), traffic.received_bytes)
    yield counter("deltahub_sent_bytes", "Bytes that clients were sent.", (), traffic.sent_bytes)
    if watched.exchanges is not None:
        in_flight = watched.exchanges.n_open
        yield gauge("deltahub_http_requests_in_flight", "Requests under way.", (), in_flight)
    connections = watched.connections
    if connections is not None:
        yield gauge(
            "deltahub_connections",
            "Open connections: with a request, or idle.",
            ("state",),
            {
                ("busy",): connections.n_open - connections.n_idle,
                ("idle",): connections.n_idle,
            },
        )
        most = connections.total
        yield gauge("deltahub_connections_limit", "Most connections at once.", (), most)


def _turn_families(hub: Hub) -> Iterator[Metric]:
    def of_each(read: Callable[[FairQueue], int]) -> dict[tuple[str, ...], float]:
        return {(name,): read(queue) for name, queue in hub.queues.items()}

    label = ("queue",)
    taken, waiting = of_each(lambda queue: queue.n_taken), of_each(lambda queue: queue.n_waiting)
    yield gauge("deltahub_turns_taken", "Turns that requests have now.", label, taken)
    yield gauge("deltahub_turns_waiting", "Requests that wait for a turn.", label, waiting)
    limit, asked = of_each(lambda queue: queue.total), of_each(lambda queue: queue.n_asked)
    yield gauge("deltahub_turns_limit", "Most turns at once.", label, limit)
    yield counter("deltahub_turns_asked", "Requests that asked for a turn.", label, asked)
    refused, cut = of_each(lambda queue: queue.n_refused), of_each(lambda queue: queue.n_cut)
    yield counter("deltahub_turns_refused", "Requests that got no turn in time.", label, refused)
    yield counter("deltahub_turns_cut", "Slow requests that lost their turn.", label, cut)


def _cache_families(hub: Hub) -> Iterator[Metric]:
    served = hub.reader.served
    yield counter(
        "deltahub_served_bytes",
        "Bytes of files that were served: rebuilt from frames, or read from uploads.",
        ("source",),
        {("rebuilt",): served.from_frames, ("uploaded",): served.from_uploads},
    )
    yield gauge("deltahub_hot_base_bytes", "Bytes of hot bases.", (), hub.hot_bases.kept_bytes)
    read_bytes = hub.hot_bases.read_bytes
    yield counter("deltahub_hot_base_read_bytes", "Bytes read from hot bases.", (), read_bytes)
    reads: dict[tuple[str, ...], float] = {}
    kept: dict[tuple[str, ...], float] = {}
    for name, cache in hub.reader.caches.items():
        reads |= {(name, "hit"): cache.n_hits, (name, "miss"): cache.n_misses}
        kept[(name,)] = cache.used_bytes
    objects = hub.registry.cache
    if objects is not None:
        counts = objects.reads
        reads |= {("objects", "hit"): counts.n_hits, ("objects", "miss"): counts.n_misses}
        kept[("objects",)] = objects.kept_bytes
        yield counter(
            "deltahub_object_cache_read_bytes",
            "Bytes of packs in a bucket that were read through the cache on this disk.",
            ("result",),
            {("hit",): counts.hit_bytes, ("miss",): counts.miss_bytes},
        )
    about = "Look-ups: of blocks, places, recipes and differences in memory, of objects on disk."
    yield counter("deltahub_cache_requests", about, ("cache", "result"), reads)
    yield gauge("deltahub_cache_bytes", "Bytes that a cache keeps.", ("cache",), kept)
