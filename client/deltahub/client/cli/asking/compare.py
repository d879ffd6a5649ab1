"""How the command line shows a comparison of two models."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from deltahub.client.cli.output import Output, table
from deltahub.client.hub import Hub
from deltahub.client.records import Job

_MOST_ROWS: Final = 20
_UNKNOWN: Final = "-"


def tell_comparison(hub: Hub, job: Job, output: Output) -> None:
    """Print the comparison that a job has made: totals, modules, and the tensors that changed."""
    found = hub.comparison(job)
    if output.is_json:
        output.result({**found, "job_id": job.id, "tensors": list(hub.compared_tensors(job))})
        return
    output.result(found, *_lines(found), *_tensors(hub, job))


def _lines(found: Mapping[str, Any]) -> list[str]:
    from pydantic import ValidationError

    from deltahub.methods.comparing.report import Totals

    names = [f"{side['name']}@{side['commit'][:12]}" for side in (found["first"], found["second"])]
    lines = [f"{names[0]} -> {names[1]}"]
    try:
        lines += Totals.model_validate(found["totals"]).sentences()
    except ValidationError:
        lines.append("this hub tells more than this client knows: see it with --json")
    rows = [["module", "layers", "relative change", "identical", "rank"]]
    rows += [_module(name, cells) for name, cells in _modules(found["cells"]).items()]
    return [*lines, "", *table(rows, right=frozenset({1, 2, 3, 4}))]


def _modules(cells: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Cells by module. Modules outside of layers stand for themselves."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        found.setdefault(str(cell["module"]), []).append(cell)
    return found


def _module(name: str, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row: of relative changes and ranks the largest."""
    n_layers = sum(cell["layer"] is not None for cell in cells)
    known = [cell["relative"] for cell in cells if cell["relative"] is not None]
    count = sum(cell["count"] for cell in cells)
    same = sum(cell["n_same"] for cell in cells)
    ranks = [cell["rank"] for cell in cells if cell["rank"] is not None]
    above = any(cell["is_above"] for cell in cells)
    return [
        name,
        str(n_layers) if n_layers else _UNKNOWN,
        f"{max(known):.3g}" if known else _UNKNOWN,
        f"{same / count:.1%}" if count else _UNKNOWN,
        (">" if above else "") + str(max(ranks)) if ranks else _UNKNOWN,
    ]


def _tensors(hub: Hub, job: Job) -> list[str]:
    rows = [["tensor", "relative change", "identical", "largest", "cosine", "rank 90 %", "99 %"]]
    n_more = 0
    for each in hub.compared_tensors(job, sort="relative"):
        if each["status"] == "same":
            continue
        if len(rows) > _MOST_ROWS:
            n_more += 1
        else:
            rows.append(_tensor(each))
    if len(rows) == 1:
        return []
    more = [f"and {n_more} more: see them with --json"] if n_more else []
    return ["", *table(rows, right=frozenset(range(1, 7))), *more]


def _tensor(each: Mapping[str, Any]) -> list[str]:
    if each["status"] != "changed":
        what = {"only_first": "only in the first", "only_second": "only in the second"}
        shapes = ["x".join(map(str, each[key])) for key in ("shape", "second_shape") if each[key]]
        return [each["name"], what.get(each["status"], " -> ".join(shapes)), *[""] * 5]
    n_same = each["n_same"]
    return [
        each["name"],
        _number(each["relative"]),
        _UNKNOWN if n_same is None else f"{n_same / max(each['count'], 1):.1%}",
        _number(each["largest"]),
        _UNKNOWN if each["cosine"] is None else f"{each['cosine']:.6f}",
        _rank(each, "rank_90"),
        _rank(each, "rank_99"),
    ]


def _rank(each: Mapping[str, Any], key: str) -> str:
    if each["rank_limit"] is None:
        return _UNKNOWN
    return f">{each['rank_limit']}" if each[key] is None else str(each[key])


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.3g}"
