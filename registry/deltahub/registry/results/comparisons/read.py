"""Reads comparisons. Every read checks that the caller may still read both models."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import zstandard
from sqlalchemy import select
from sqlalchemy.orm import undefer

from deltahub.registry.access.caller import Caller
from deltahub.registry.db.models import Revision, utc_now
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.comparisons import Comparison, ComparisonPart
from deltahub.registry.errors import ComparisonNotFound, TensorNotFound
from deltahub.registry.names import quoted
from deltahub.registry.registry import Registry
from deltahub.registry.results.comparisons.pair import Pair, Side, may_read, pair_of, resolve_pair

# How exactly `used_at` is known: to write it at every read would make each a writer.
_USED: Final = timedelta(hours=1)
# The order of a list of tensors -> the field, and whether the largest comes first.
ORDERS: Final[Mapping[str, tuple[str, bool]]] = {
    "name": ("name", False),
    "relative": ("relative", True),
    "largest": ("largest", True),
    "same": ("same_share", False),
    "cosine": ("cosine", False),
    "rank": ("rank_order", True),
    "size": ("count", True),
}
STATUSES: Final = ("same", "changed", "reshaped", "only_first", "only_second")


@dataclass(frozen=True)
class ComparisonInfo:
    """A report without its tensors. cells: of the heat map, one for each layer and module."""

    id: str
    first: Side
    second: Side
    totals: Mapping[str, Any]
    cells: Sequence[Mapping[str, Any]]
    created_at: datetime


@dataclass(frozen=True)
class TensorQuery:
    """Which tensors, and in which order. words: all in the name, in any case."""

    words: Sequence[str] = ()
    status: str | None = None
    layer: str | None = None
    module: str | None = None
    order: str = "relative"
    is_reversed: bool = False
    offset: int = 0
    limit: int = 100


def find(reg: Registry, caller: Caller | None, first: str, second: str) -> ComparisonInfo | None:
    """The comparison of these two, if there is one. first, second: `namespace/name[@revision]`.

    RepositoryNotFound, RevisionNotFound.
    """
    with reg.db.read() as session:
        pair = resolve_pair(session, caller, first, second)
        row = row_of(session, caller, pair)
        # Its weights were compared in another revision, maybe: these are the names asked for.
        found = None if row is None else _info(row, pair)
    if found is not None:
        _touch(reg, found.id)
    return found


def row_of(session: ReadSession, caller: Caller | None, pair: Pair) -> Comparison | None:
    """The row of a pair that the caller may read."""
    if pair.key is None:
        return None
    row = session.scalar(select(Comparison).where(Comparison.key == pair.key))
    if row is None or not may_read(session, caller, (row.first_id, row.second_id)):
        return None
    return row


def get(reg: Registry, caller: Caller | None, comparison_id: str) -> ComparisonInfo:
    """The comparison with this id; ComparisonNotFound."""
    with reg.db.read() as session:
        row = _row(session, caller, comparison_id)
        revisions = [session.get_one(Revision, each) for each in (row.first_id, row.second_id)]
        found = _info(row, pair_of(session, revisions))
    _touch(reg, found.id)
    return found


def list_tensors(
    reg: Registry, caller: Caller | None, comparison_id: str, query: TensorQuery
) -> tuple[list[dict[str, Any]], int]:
    """(a page of the tensors, how many match); ComparisonNotFound. order: one of ORDERS."""
    found = [each for each in _tensors(reg, caller, comparison_id) if _matches(query, each)]
    key, is_largest_first = ORDERS[query.order]
    found.sort(key=lambda each: str(each["name"]))
    known = [each for each in found if _value(each, key) is not None]
    unknown = [each for each in found if _value(each, key) is None]
    known.sort(key=lambda each: _value(each, key), reverse=is_largest_first != query.is_reversed)
    return (known + unknown)[query.offset : query.offset + query.limit], len(found)


def get_tensor(
    reg: Registry, caller: Caller | None, comparison_id: str, name: str
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(numbers of one tensor, its histogram and heat map if it was read).

    ComparisonNotFound, TensorNotFound.
    """
    for each in _tensors(reg, caller, comparison_id):
        if each["name"] == name:
            part = each.pop("part")
            return each, None if part is None else _detail(reg, comparison_id, part, name)
    raise TensorNotFound(f"neither model has a tensor {quoted(name)}")


def unpacked(data: bytes) -> Any:
    """The value that write.packed has packed."""
    return json.loads(zstandard.ZstdDecompressor().decompress(data))


def _tensors(reg: Registry, caller: Caller | None, comparison_id: str) -> Iterator[dict[str, Any]]:
    with reg.db.read() as session:
        data = _row(session, caller, comparison_id, with_tensors=True).tensors
    return iter(unpacked(data))


def _matches(query: TensorQuery, tensor: Mapping[str, Any]) -> bool:
    name = str(tensor["name"]).lower()
    if not all(word.lower() in name for word in query.words):
        return False
    return all(
        wanted is None or (tensor[key] or "") == wanted
        for key, wanted in (
            ("status", query.status), ("layer", query.layer), ("module", query.module),
        )
    )  # fmt: skip


def _value(tensor: Mapping[str, Any], key: str) -> Any:
    if key == "same_share":
        n_same, count = tensor["n_same"], tensor["count"]
        return None if n_same is None else n_same / max(count, 1)
    if key == "rank_order":
        # A rank above the limit is larger than all others.
        limit = tensor["rank_limit"]
        return None if limit is None else tensor["rank_90"] or limit + 1
    return tensor[key]


def _detail(reg: Registry, comparison_id: str, number: int, name: str) -> dict[str, Any] | None:
    with reg.db.read() as session:
        part = session.get(ComparisonPart, (comparison_id, number))
        data = None if part is None else part.data
    if data is None:
        raise ComparisonNotFound("the comparison was deleted meanwhile: ask for it again")
    found: dict[str, Any] | None = unpacked(data).get(name)
    return found


def _row(
    session: ReadSession, caller: Caller | None, comparison_id: str, *, with_tensors: bool = False
) -> Comparison:
    query = select(Comparison).where(Comparison.id == comparison_id)
    row = session.scalar(query.options(undefer(Comparison.tensors)) if with_tensors else query)
    if row is None or not may_read(session, caller, (row.first_id, row.second_id)):
        raise ComparisonNotFound(
            f"there is no comparison {quoted(comparison_id)}, or you may not read both models"
        )
    return row


def _info(row: Comparison, pair: Pair) -> ComparisonInfo:
    shown = unpacked(row.totals)
    return ComparisonInfo(
        row.id, pair.first, pair.second, shown["totals"], shown["cells"], row.created_at
    )


def _touch(reg: Registry, comparison_id: str) -> None:
    with reg.db.read() as session:
        row = session.get(Comparison, comparison_id)
        is_due = row is not None and row.used_at < utc_now() - _USED
    if is_due:
        with reg.db.write_beside() as session:
            again = session.get(Comparison, comparison_id)
            if again is not None:
                again.used_at = utc_now()
