"""Reports what is marked as lost, with its names."""

from sqlalchemy import exists, func, select

from deltahub.registry.db.models import File, FileTensor, Namespace, Repository, Revision, Tensor
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.maintenance.fsck.findings import Finding, Findings
from deltahub.registry.names import quoted
from deltahub.registry.registry import Registry


def check_lost(reg: Registry) -> Findings:
    """Report the files that are marked as lost, and lost tensors that no file has."""
    newest = func.max(Revision.id)
    with reg.db.read() as session:
        listed = session.execute(
            select(
                Namespace.name + "/" + Repository.name,
                Entry.path,
                File.sha256,
                func.count(),
                newest,
            )
            .join(Entry, Entry.file_id == File.id)
            .join(Revision, Revision.id == Entry.revision_id)
            .join(Repository, Repository.id == Revision.repository_id)
            .join(Namespace, Namespace.id == Repository.namespace_id)
            .where(File.state == "lost")
            .group_by(Namespace.name, Repository.name, Entry.path, File.sha256)
            .order_by(Namespace.name, Repository.name, Entry.path)
        ).all()
        for name, path, sha256, n_revisions, last in listed:
            commit = session.get_one(Revision, last).commit
            text = (
                f"{quoted(path)} of {name} is lost: push it again (revisions: {n_revisions}, the "
                f"last {commit}; SHA-256 {sha256})"
            )
            yield Finding("file_lost", sha256, text)
        has_file = exists().where(FileTensor.tensor_id == Tensor.id)
        for content in session.scalars(
            select(Tensor.hash).where(Tensor.lost.is_not(None), ~has_file).order_by(Tensor.id)
        ):
            text = f"tensor {content.hex()} is lost: push a file that has it, or its differences"
            yield Finding("tensor_lost", content.hex(), text)
