"""Damage that was found, as rows of the table `findings`, and the files that need what is damaged.

fsck --repair, scrub and readers that meet damage write them. They mark nothing: marks.py does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Select, exists, func, or_, select, update

from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import (
    File,
    FileTensor,
    Frame,
    Landing,
    Namespace,
    Pack,
    Repository,
    Revision,
    Tensor,
    TensorBase,
    Xorb,
    utc_now,
)
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.scrub import FoundDamage, PackCopy
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.names import quoted

# Names of files that one row lists.
MOST_NAMES: Final = 20


@dataclass(frozen=True)
class Affected:
    """Some of the files that need an object, as "'PATH' of NAMESPACE/NAME", and their number."""

    names: tuple[str, ...] = ()
    n_names: int = 0


def report(
    session: WriteSession,
    kind: str,
    object_id: str,
    code: str,
    text: str,
    affected: Affected | None = None,
) -> None:
    """Note damage of an object. A row of the same object and code is opened again.

    kind, code: see FoundDamage. affected: None leaves the names as they are.
    """
    now = utc_now()
    row = session.get(FoundDamage, (kind, object_id, code))
    if row is None:
        row = FoundDamage(
            kind=kind, object_id=object_id, code=code, affected=_as_dict(Affected()), found_at=now
        )
        session.add(row)
    elif row.state != "open":
        row.found_at = now
    row.text, row.state, row.how, row.last_seen_at = text, "open", None, now
    if affected is not None:
        row.affected = _as_dict(affected)
    session.flush()


def text_of(what: str, name: str, why: object) -> str:
    """The text "WHAT NAME: WHY", or WHY alone if it has the name already."""
    text = str(why)
    return text if name in text else f"{what} {name}: {text}"


def close(session: WriteSession, kind: str, object_ids: Iterable[str], how: str) -> int:
    """Note that these objects are right again; returns how many open findings there were."""
    closed = 0
    for batch in batches(object_ids):
        rows = session.scalars(
            select(FoundDamage).where(
                FoundDamage.state == "open",
                FoundDamage.kind == kind,
                FoundDamage.object_id.in_(batch),
            )
        ).all()
        for row in rows:
            row.state, row.how = "repaired", how
        closed += len(rows)
    session.flush()
    return closed


def close_tensors(session: WriteSession, tensor_ids: Iterable[int], how: str) -> None:
    """The same for tensors, by their rows. Costs one query if no tensor has an open finding."""
    is_open = (FoundDamage.state == "open") & (FoundDamage.kind == "tensor")
    opened = set(session.scalars(select(FoundDamage.object_id).where(is_open)))
    if not opened:
        return
    for batch in batches(tensor_ids):
        hashes = session.scalars(select(Tensor.hash).where(Tensor.id.in_(batch)))
        close(session, "tensor", opened.intersection(content.hex() for content in hashes), how)


def close_gone(session: WriteSession) -> int:
    """Close the findings of objects that no row needs any more; returns their number."""
    known: dict[str, Select[str]] = {
        "pack": select(Pack.id).where(
            or_(
                Pack.state.in_(("live", "writing")),
                # A damaged pack without a frame that a row needs is as good as gone.
                exists(select(Frame.pack_id).where(Frame.pack_id == Pack.id)),
            )
        ),
        "copy": select(PackCopy.pack_id).where(PackCopy.state != "condemned"),
        "landing": select(Landing.id).where(Landing.state != "condemned"),
        "xorb": select(Xorb.id).where(Xorb.state == "live"),
    }
    closed = 0
    for kind, ids in known.items():
        rows = session.scalars(
            update(FoundDamage)
            .where(
                FoundDamage.state == "open",
                FoundDamage.kind == kind,
                FoundDamage.object_id.not_in(ids),
            )
            .values(state="gone")
            .returning(FoundDamage.object_id)
            .execution_options(synchronize_session=False)
        )
        closed += len(rows.all())
    is_open = (FoundDamage.state == "open") & (FoundDamage.kind == "tensor")
    for row in session.scalars(select(FoundDamage).where(is_open)):
        content = bytes.fromhex(row.object_id)
        if session.scalar(select(Tensor.id).where(Tensor.hash == content).limit(1)) is None:
            row.state = "gone"
            closed += 1
    session.flush()
    return closed


def open_findings(session: ReadSession, limit: int | None = None) -> list[FoundDamage]:
    """The open findings, those of the longest standing first."""
    query = select(FoundDamage).where(FoundDamage.state == "open")
    return list(session.scalars(query.order_by(FoundDamage.found_at).limit(limit)))


def affected_by(session: ReadSession, kind: str, object_id: str) -> Affected:
    """The files that cannot be read without this object, as far as names tell."""
    if kind == "xorb":
        return _of_xorb(session, object_id)
    if kind == "landing":
        files = select(File.id).where(File.landing_id == object_id)
    else:
        if kind == "tensor":
            own = select(Tensor.id).where(Tensor.hash == bytes.fromhex(object_id))
        else:
            own = select(Frame.tensor_id).where(Frame.pack_id == object_id)
        needed = own.with_only_columns(own.selected_columns[0].label("id")).cte(recursive=True)
        deltas = select(TensorBase.tensor_id).join(needed, TensorBase.base_id == needed.c.id)
        needed = needed.union(deltas)
        files = select(FileTensor.file_id).where(FileTensor.tensor_id.in_(select(needed.c.id)))
    return affected_files(session, files)


def affected_files(session: ReadSession, files: Select[int]) -> Affected:
    """These files, where revisions list them. files: a query for their rows."""
    named = (
        select(Namespace.name, Repository.name.label("repository"), Entry.path)
        .join(Repository, Repository.namespace_id == Namespace.id)
        .join(Revision, Revision.repository_id == Repository.id)
        .join(Entry, Entry.revision_id == Revision.id)
        .where(Entry.file_id.in_(files))
        .distinct()
        .subquery()
    )
    n_names = session.scalar(select(func.count()).select_from(named)) or 0
    rows = session.execute(select(named).order_by(*named.c).limit(MOST_NAMES)).all()
    return Affected(
        tuple(f"{quoted(path)} of {namespace}/{name}" for namespace, name, path in rows), n_names
    )


def _of_xorb(session: ReadSession, xorb_id: str) -> Affected:
    name = session.execute(
        select(Namespace.name, Repository.name)
        .join(Repository, Repository.namespace_id == Namespace.id)
        .join(Xorb, Xorb.repository_id == Repository.id)
        .where(Xorb.id == xorb_id)
    ).one_or_none()
    return Affected() if name is None else Affected((f"an upload to {name[0]}/{name[1]}",), 1)


def _as_dict(affected: Affected) -> dict[str, object]:
    return {"names": list(affected.names), "n_names": affected.n_names}
