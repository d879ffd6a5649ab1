"""Charts as ECharts takes them, from plain numbers."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any


def over_time(
    times: Sequence[datetime], series: Mapping[str, Sequence[float]], *, is_stacked: bool = False
) -> dict[str, Any]:
    """Lines over time; stacked, they are areas whose sum counts."""
    shown = [time.isoformat() for time in times]
    return {
        "xAxis": {"type": "time"},
        "yAxis": {"type": "value"},
        "legend": {},
        "series": [
            {
                "name": name,
                "type": "line",
                "showSymbol": len(shown) < 3,
                "data": [list(point) for point in zip(shown, values, strict=True)],
                **({"stack": "all", "areaStyle": {"opacity": 0.25}} if is_stacked else {}),
            }
            for name, values in series.items()
        ],
    }


def bars_over_time(
    times: Sequence[datetime], series: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Stacked bars, one for each time."""
    option = over_time(times, series)
    for each in option["series"]:
        del each["showSymbol"]
        each |= {"type": "bar", "stack": "all", "barMaxWidth": 12}
    return option


def bars(names: Sequence[str], series: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Bars from left to right, stacked, the first name at the top."""
    return {
        "xAxis": {"type": "value"},
        "yAxis": {"type": "category", "data": list(names), "inverse": True},
        "legend": {} if len(series) > 1 else None,
        "series": [
            {"name": name, "type": "bar", "stack": "all", "barMaxWidth": 24, "data": list(values)}
            for name, values in series.items()
        ],
    }
