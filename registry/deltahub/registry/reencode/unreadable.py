"""The files and repositories of tensors that cannot be decoded."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select

from deltahub.registry.catalog.weights import named_tensors
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, FileTensor, Namespace, Repository, Revision, Tensor
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import RegistryError
from deltahub.registry.registry import Registry
from deltahub.registry.storage.base import StoreError


@dataclass(frozen=True)
class Unreadable:
    """Tensors of one file that cannot be read, for one reason.

    repository, path: "" for tensors of no revision. tensors: their names in the file; the BLAKE3 of
    a tensor without a name.
    """

    repository: str
    path: str
    tensors: tuple[str, ...]
    reason: str


def describe(
    reg: Registry, reader: FileReader, reasons: Mapping[int, str]
) -> tuple[Unreadable, ...]:
    """The files that need these tensors. reasons: row -> why it cannot be decoded."""
    if not reasons:
        return ()
    files: dict[tuple[str, str, int], set[int]] = {}
    hashes: dict[int, bytes] = {}
    with reg.db.read() as session:
        for batch in batches(sorted(reasons)):
            rows = session.execute(select(Tensor.id, Tensor.hash).where(Tensor.id.in_(batch)))
            hashes.update((tensor, content) for tensor, content in rows)
            holders = session.execute(
                select(
                    Namespace.name + "/" + Repository.name,
                    Entry.path,
                    Entry.file_id,
                    FileTensor.tensor_id,
                )
                .join(FileTensor, FileTensor.file_id == Entry.file_id)
                .join(Revision, Revision.id == Entry.revision_id)
                .join(Repository, Repository.id == Revision.repository_id)
                .join(Namespace, Namespace.id == Repository.namespace_id)
                .where(FileTensor.tensor_id.in_(batch))
                .distinct()
            )
            for repository, path, file_id, tensor in holders:
                files.setdefault((repository, path, file_id), set()).add(tensor)
    found: dict[tuple[str, str, str], list[str]] = {}
    for (repository, path, file_id), tensors in sorted(files.items()):
        names = _names(reg, reader, file_id)
        for tensor in sorted(tensors & hashes.keys()):
            content = hashes[tensor]
            key = (repository, path, reasons[tensor])
            found.setdefault(key, []).append(names.get(content, content.hex()))
    unlisted = hashes.keys() - {tensor for tensors in files.values() for tensor in tensors}
    for tensor in sorted(unlisted):
        found.setdefault(("", "", reasons[tensor]), []).append(hashes[tensor].hex())
    return tuple(
        Unreadable(repository, path, tuple(dict.fromkeys(names)), reason)
        for (repository, path, reason), names in found.items()
    )


def _names(reg: Registry, reader: FileReader, file_id: int) -> dict[bytes, str]:
    """content id -> name, for a safetensors file; empty if its recipe cannot be read."""
    with reg.db.read() as session:
        file = session.get(File, file_id)
    if file is None:
        return {}
    try:
        refs = named_tensors(reader, file)
    except (RegistryError, StoreError):
        return {}
    return {ref.tensor: name for name, ref in reversed(refs)}
