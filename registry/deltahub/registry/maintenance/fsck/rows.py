"""Compares rows with rows, beyond the constraints of the schema. Reads no object."""

from collections.abc import Callable

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, aliased

from deltahub.registry.db.models import (
    PUBLIC_DOMAIN_KEY,
    Domain,
    File,
    FileTensor,
    Frame,
    Landing,
    Pack,
    Ref,
    Repository,
    Revision,
    Tensor,
    TensorBase,
)
from deltahub.registry.maintenance.fsck.findings import Finding, Findings
from deltahub.registry.packs.locations import bases_of
from deltahub.registry.packs.reading.chain import MAX_CHAIN

# States of a pack that frames may lie in.
IN_USE = ("live", "damaged")


def check_rows(session: Session, max_depth: int) -> Findings:
    """Run every check of this file in one session."""
    for check in _CHECKS:
        yield from check(session)
    yield from check_depths(session, max_depth)


def check_refs(session: Session) -> Findings:
    rows = session.execute(
        select(Ref.kind, Ref.name, Ref.repository_id)
        .outerjoin(Revision, Revision.id == Ref.revision_id)
        .where(or_(Revision.id.is_(None), Revision.repository_id != Ref.repository_id))
    )
    for kind, name, repository in rows:
        text = f"{kind} {name} of repository {repository} points at no revision of it"
        yield Finding("ref_dangling", f"{repository}/{name}", text)
    is_main = (Ref.repository_id == Repository.id) & (Ref.kind == "branch") & (Ref.name == "main")
    main = func.coalesce(Ref.revision_id, 0)
    heads = select(Repository.id, Repository.head_id, main).outerjoin(Ref, is_main)
    for repository, head, right in session.execute(heads.where(Repository.head_id != main)):
        text = f"lists show revision {head} of repository {repository}, and its main is at {right}"
        yield Finding("head_wrong", str(repository), text)


def check_files(session: Session) -> Findings:
    rows = session.execute(
        select(File.id, File.sha256, File.state, Landing.state, Tensor.id)
        .outerjoin(Landing, Landing.id == File.landing_id)
        .outerjoin(Tensor, Tensor.id == File.recipe_tensor_id)
        .where(
            or_(
                (File.state == "landed") & (func.coalesce(Landing.state, "") != "complete"),
                (File.state == "ingested") & Tensor.id.is_(None),
                File.state.not_in(("proving", "landed", "ingested", "lost")),
            )
        )
    )
    for file, sha256, state, landing, _recipe in rows:
        what = f"its upload is {landing or 'gone'}" if state == "landed" else "its recipe is gone"
        yield Finding("file_incomplete", sha256, f"file {file} ({sha256}) is {state}, but {what}")


def check_file_domains(session: Session) -> Findings:
    public = _public_domain_id(session)
    rows = session.execute(
        select(File.sha256, FileTensor.tensor_id, Tensor.domain_id)
        .join(File, File.id == FileTensor.file_id)
        .outerjoin(Tensor, Tensor.id == FileTensor.tensor_id)
        .where(
            or_(
                Tensor.id.is_(None),
                (Tensor.domain_id != File.domain_id) & (Tensor.domain_id != public),
            )
        )
    )
    for sha256, tensor, domain in rows:
        what = "which has no row" if domain is None else f"of the foreign domain {domain}"
        yield Finding("file_domain", sha256, f"file {sha256} needs tensor {tensor}, {what}")


def check_frame_packs(session: Session) -> Findings:
    rows = session.execute(
        select(Frame.tensor_id, Frame.pack_id, Pack.state, Pack.domain_id, Tensor.domain_id)
        .join(Tensor, Tensor.id == Frame.tensor_id)
        .outerjoin(Pack, Pack.id == Frame.pack_id)
        .where(
            or_(
                Pack.id.is_(None),
                Pack.state.not_in(IN_USE),
                Pack.domain_id != Tensor.domain_id,
            )
        )
    )
    for tensor, pack, state, pack_domain, domain in rows:
        what = f"of domain {pack_domain}" if state in IN_USE else f"that is {state or 'gone'}"
        text = f"tensor {tensor} of domain {domain} lies in pack {pack} {what}"
        yield Finding("frame_pack", pack, text)


def check_bases(session: Session) -> Findings:
    base = aliased(Tensor)
    rows = session.execute(
        select(TensorBase.tensor_id, TensorBase.base_id, Tensor.domain_id, base.domain_id)
        .join(Tensor, Tensor.id == TensorBase.tensor_id)
        .outerjoin(base, base.id == TensorBase.base_id)
        .where(
            or_(
                base.id.is_(None),
                (base.domain_id != Tensor.domain_id)
                & (base.domain_id != _public_domain_id(session)),
            )
        )
    )
    for tensor, base_id, domain, base_domain in rows:
        if base_domain is None:
            text = f"tensor {tensor} needs the base {base_id}, which has no row"
            yield Finding("base_missing", str(tensor), text)
        else:
            text = f"tensor {tensor} of domain {domain} needs the base {base_id} of {base_domain}"
            yield Finding("base_domain", str(tensor), text)


def check_depths(session: Session, max_depth: int) -> Findings:
    """Check all depths. Correct depths exclude cycles, because a delta is deeper than its base."""
    base = aliased(Tensor)
    right = (
        select(TensorBase.tensor_id, (func.max(base.depth) + 1).label("depth"))
        .join(base, base.id == TensorBase.base_id)
        .group_by(TensorBase.tensor_id)
        .subquery()
    )
    rows = session.execute(
        select(Tensor.id, Tensor.depth, func.coalesce(right.c.depth, 0))
        .outerjoin(right, right.c.tensor_id == Tensor.id)
        .where(or_(Tensor.depth != func.coalesce(right.c.depth, 0), Tensor.depth > max_depth))
    ).all()
    for tensor, depth, expected in rows:
        if depth != expected:
            yield Finding("depth_wrong", str(tensor), f"tensor {tensor}: {depth}, not {expected}")
            if _is_in_cycle(session, tensor):
                text = f"tensor {tensor} is needed for decoding itself"
                yield Finding("base_cycle", str(tensor), text)
        else:
            text = f"tensor {tensor} is {depth} deltas deep; at most {max_depth} are allowed"
            yield Finding("depth_exceeded", str(tensor), text)


def _is_in_cycle(session: Session, tensor: int) -> bool:
    level = {tensor}
    for _ in range(MAX_CHAIN):
        level = {base for bases in bases_of(session, level).values() for base in bases}
        if tensor in level:
            return True
    return False


def _public_domain_id(session: Session) -> int:
    """The id of the public domain; -1, which is no id, if there is none yet."""
    found = session.scalar(select(Domain.id).where(Domain.key == PUBLIC_DOMAIN_KEY))
    return -1 if found is None else found


_CHECKS: tuple[Callable[[Session], Findings], ...] = (
    check_refs,
    check_files,
    check_file_domains,
    check_frame_packs,
    check_bases,
)
