"""Families of metrics in the form that the Prometheus client library writes."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from deltahub.registry.measures import Labels, Spread


def counter(
    name: str, about: str, labels: Sequence[str] = (), sums: Mapping[Any, float] | float = 0
) -> Metric:
    """Return a counter, `name`_total. sums: by tuples of labels, or one number without labels."""
    family = CounterMetricFamily(name, about, labels=labels)
    for values, value in _by_labels(sums):
        family.add_metric(values, value)
    return family


def gauge(
    name: str, about: str, labels: Sequence[str] = (), values: Mapping[Any, float] | float = 0
) -> Metric:
    """Return a gauge. values: as for counter()."""
    family = GaugeMetricFamily(name, about, labels=labels)
    for label_values, value in _by_labels(values):
        family.add_metric(label_values, value)
    return family


def histogram(
    name: str,
    about: str,
    labels: Sequence[str],
    bounds_s: Sequence[float],
    spreads: Mapping[Labels, Spread],
) -> Metric:
    """Return a histogram of durations."""
    family = HistogramMetricFamily(name, about, labels=labels)
    bounds = [*map(str, bounds_s), "+Inf"]
    for values, spread in spreads.items():
        # Each bucket has all durations up to its bound.
        buckets = zip(bounds, accumulate(spread.counts), strict=True)
        family.add_metric(values, list(buckets), spread.total_s)
    return family


def _by_labels(values: Mapping[Any, float] | float) -> Iterable[tuple[Labels, float]]:
    return values.items() if isinstance(values, Mapping) else [((), values)]
