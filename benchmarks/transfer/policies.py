"""What users get by each rule that decides on a move: the hub's gate, and two simple rules.

The gate sees agreement on made-up inputs alone; here it is judged by accuracy on private tests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.transfer.moves import Row
from deltahub.methods.transfer.measures.gate import MAX_LOSS, Rung, choose, decide
from deltahub.methods.transfer.measures.intervals import Share

RUNGS: Final = {
    "copy": Rung.COPY,
    "activation map": Rung.ACTIVATION_MAP,
    "Trans-LoRA": Rung.TRANS_LORA,
    "TiTok": Rung.TITOK,
}
POLICIES: Final = ("gate", "always copy", "always Trans-LoRA", "always retrain", "never move")


@dataclass(frozen=True)
class Outcome:
    """One rule on one move. accuracy: of what serves the users afterwards, on private tests; the
    old adapter where nothing was moved. regret: what the best of all methods has more. lost: a move
    that costs more accuracy than the gate allows. promise: of the gate, null for other rules.
    """

    policy: str
    task: str
    seed: int
    target: str
    chosen: str
    is_moved: bool
    accuracy: float
    regret: float
    lost: bool
    promise: float | None
    cpu_seconds: float


def policies(rows: Iterable[Row]) -> list[Outcome]:
    """Every rule on every move."""
    moves: dict[tuple[str, int, str], dict[str, Row]] = {}
    for row in rows:
        moves.setdefault((row.task, row.seed, row.target), {})[row.method] = row
    return [
        _outcome(policy, by_method, *_chosen(policy, by_method))
        for by_method in moves.values()
        for policy in POLICIES
    ]


def _chosen(policy: str, rows: dict[str, Row]) -> tuple[str, float | None, float]:
    """(method, the gate's promise, CPU seconds of all that was tried)"""
    if policy == "gate":
        return _by_gate(rows)
    method = {
        "always copy": "copy",
        "always Trans-LoRA": "Trans-LoRA",
        "always retrain": "retrained",
        "never move": "source",
    }[policy]
    spent = rows[method].cpu_seconds
    # Where no copy is possible, the adapter stays where it is.
    return (method if rows[method].right is not None else "source"), None, spent


def _by_gate(rows: dict[str, Row]) -> tuple[str, float | None, float]:
    agreed = {
        name: Share(n=rows[name].n_held_out, hits=rows[name].agreed or 0)
        for name in RUNGS
        if rows[name].agreed is not None
    }
    rung = choose([(RUNGS[name], share) for name, share in agreed.items()])
    best = next(name for name, each in RUNGS.items() if each is rung)
    target = Share(n=rows["target"].n_held_out, hits=rows["target"].agreed or 0)
    decision = decide(agreed[best], target, accuracy(rows["source"]))
    spent = sum(rows[name].cpu_seconds for name in RUNGS)
    if not decision.is_published:
        return "source", None, spent
    return best, decision.promise, spent


def _outcome(
    policy: str, rows: dict[str, Row], chosen: str, promise: float | None, spent: float
) -> Outcome:
    row = rows[chosen]
    source, found = accuracy(rows["source"]), accuracy(row)
    options: Sequence[str] = ("source", "target", "retrained", *RUNGS)
    best = max(accuracy(rows[name]) for name in options if rows[name].right is not None)
    return Outcome(
        policy, row.task, row.seed, row.target, chosen, chosen != "source", found,
        best - found, source - found > MAX_LOSS, promise, round(spent, 2),
    )  # fmt: skip


def accuracy(row: Row) -> float:
    """On private tests. A method that is not possible has none."""
    if row.right is None:
        raise ValueError(f"{row.method} was not possible: {row.why_not}")
    return row.right / row.n_tests
