"""How the command line shows an upgrade of a base, and the plan that its job has made."""

from collections.abc import Mapping, Sequence
from typing import Any

from deltahub.client.cli.output import table


def plan_lines(result: Mapping[str, Any]) -> list[str]:
    """What the job `upgrade_base` has planned, adapter by adapter."""
    if result.get("policy") == "off" and not result["moves"]:
        return ["no upgrade of the old base is proposed any more"]
    lines = []
    if result.get("upgrade") is not None:
        n_kept = result.get("n_kept", 0)
        before = f", {n_kept} were decided on before" if n_kept else ""
        lines.append(
            f"upgrade {result['upgrade']}: {result['n_planned']} planned{before};"
            f" `deltahub base show {result['upgrade']}` follows it"
        )
    elif not result["moves"]:
        lines.append("the old base has no adapter that you may move")
    rows = [["adapter", "ways", "takes", "memory", "new name"]]
    for each in result["moves"]:
        name = str(each["adapter"]).partition("@")[0]
        rows.append([name, _ways(each["rungs"]), *_cost(each), str(each["result"])])
    if result["moves"]:
        lines += ["", *table(rows, right=frozenset({2, 3}))]
    for each in result["moves"]:
        name = str(each["adapter"]).partition("@")[0]
        lines += [f"{name}: {text}" for text in _told(each)]
    lines += [f"left out {each['adapter']}: {each['why']}" for each in result.get("skipped", ())]
    if result.get("n_more"):
        lines.append(f"{result['n_more']} adapters or more were not looked at: plan again later")
    return lines


def upgrade_lines(found: Mapping[str, Any]) -> list[str]:
    """An upgrade as a terminal shows it: the adapters by the ways to move them."""
    names = [f"{found[key]}@{found[f'{key}_commit'][:12]}" for key in ("old", "new")]
    lines = [f"upgrade {found['id']}: {names[0]} -> {names[1]}, {found['state']}"]
    moves = found["adapters"]
    rows = [["adapter", "state", "ways", "agrees", "takes", "memory", "result"]]
    rows += [_row(each) for each in moves]
    lines += ["", *table(rows, right=frozenset({3, 4, 5}))] if moves else ["it has no adapter"]
    for each in moves:
        lines += [f"{each['adapter']}: {text}" for text in _told(each)]
    return lines


def _row(each: Mapping[str, Any]) -> list[str]:
    agreed = each["agreed"] or {}
    shown = "-"
    if "value" in agreed:
        shown = f"{agreed['value']:.1%}"
        if "low" in agreed and "high" in agreed:
            shown += f" ({agreed['low']:.0%}-{agreed['high']:.0%})"
    return [
        each["adapter"],
        each["state"],
        _ways(each["measured"] or each["rungs"], each["chosen"]),
        shown,
        *_cost(each),
        each["result"] or "-",
    ]


def _ways(rungs: Sequence[Mapping[str, Any]] | None, chosen: str | None = None) -> str:
    """The ways that apply, the chosen one in brackets."""
    ways = [str(way["rung"]) for way in rungs or () if way.get("why_not") is None]
    if chosen is not None and chosen not in ways:
        ways.insert(0, chosen)
    return " ".join(f"[{way}]" if way == chosen else way for way in ways) or "-"


def _cost(each: Mapping[str, Any]) -> tuple[str, str]:
    """The time and the memory that a move has taken; before it, about what it takes."""
    memory, seconds = each.get("memory_bytes"), each.get("seconds")
    costs = [way["cost"] for way in each.get("measured") or () if way.get("cost")]
    if costs:
        seconds = sum(cost.get("seconds") or 0 for cost in costs)
        memory = max(cost.get("peak_bytes") or 0 for cost in costs)
    return (
        f"{seconds:,.0f} s" if seconds else "-",
        f"{memory / 1e9:,.1f} GB" if memory else "-",
    )


def _told(each: Mapping[str, Any]) -> list[str]:
    """Sentences on an adapter, each once."""
    told = [*(each.get("notes") or ()), *(each.get("missing") or ())]
    return told + [
        text for key in ("why_not", "why") if (text := each.get(key)) and text not in told
    ]
