"""The models that a job reads: their files, and their tensors by name."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import select

from deltahub.codecs.files.recipe import Recipe, TensorRef
from deltahub.registry.access.permissions import full_name
from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.models import File, Repository, Revision, Tensor
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import (
    DataLost,
    InvalidRequest,
    RevisionNotFound,
    TensorNotFound,
    Unavailable,
)
from deltahub.registry.packs.holds import hold_for_job
from deltahub.registry.packs.locations import resolve
from deltahub.registry.registry import Registry
from deltahub.registry.sizes import human_size

# Configurations and tokenizers are smaller.
MAX_SMALL_FILE: Final = 64 << 20
ADAPTER_CONFIG: Final = "adapter_config.json"


@dataclass(frozen=True)
class InputTensor:
    """A tensor of a model. row: of the stored tensor; depth: of the deltas that store it."""

    ref: TensorRef
    row: int
    depth: int


@dataclass(frozen=True)
class InputFile:
    """A file of a model. size: in bytes. recipe: of a safetensors file, None for every other
    file.
    """

    path: str
    row: int
    size: int
    recipe: Recipe | None


@dataclass(frozen=True)
class InputModel:
    """One revision: all of its files, and the tensors of its safetensors files by name."""

    name: str  # namespace/name
    commit: str
    revision_id: int
    domain_id: int
    is_private: bool
    files: tuple[InputFile, ...]
    tensors: dict[str, InputTensor] = field(repr=False)

    @property
    def title(self) -> str:
        return f"{self.name}@{self.commit[:8]}"


def load_model(
    reg: Registry, reader: FileReader, revision_id: int, job_id: str, folder: str = ""
) -> InputModel:
    """The model, whose tensors are held for the job, so that nothing it reads can be deleted.

    folder: "" for the model itself, or a folder with another model, such as `pissa_init/`. An
    adapter's own weights lie beside its configuration; files in folders are other adapters.

    RevisionNotFound if it was deleted; Unavailable while files wait for their ingest, which passes;
    InvalidRequest if it has no safetensors file, or one tensor name twice; DataLost.
    """
    with reg.db.read() as session:
        revision = session.get(Revision, revision_id)
        if revision is None:
            raise RevisionNotFound(
                "a model that the job reads was deleted meanwhile: start a job without it"
            )
        repository = session.get_one(Repository, revision.repository_id)
        name = full_name(session, repository)
        domain_id, is_private = repository.domain_id, repository.is_private
        query = (
            select(Entry.path, File)
            .join(File, File.id == Entry.file_id)
            .where(Entry.revision_id == revision_id)
            .order_by(Entry.path)
        )
        rows = session.execute(query).all()
    files = []
    for path, file in rows:
        if file.state == "lost":
            raise DataLost(
                f"{path} of {name} is lost: push it again, or let the operator run deltahub fsck"
            )
        if file.state != "ingested":
            raise Unavailable(f"{path} of {name} waits for its ingest")
        is_weights = file.kind == "safetensors"
        recipe = reader.load_recipe(file) if is_weights else None
        files.append(InputFile(path, file.id, file.size, recipe))
    refs = _refs(name, files, folder)
    if not refs:
        raise InvalidRequest(f"{name} has no safetensors file: push its weights as safetensors")
    tensors = _hold(reg, domain_id, name, refs, job_id)
    return InputModel(
        name, revision.commit, revision_id, domain_id, is_private, tuple(files), tensors
    )


def read_input(reg: Registry, reader: FileReader, model: InputModel, path: str) -> bytes:
    """All bytes of a small file of the model, such as its config.json. InvalidRequest if it is
    large.
    """
    (found,) = [file for file in model.files if file.path == path]
    if found.size > MAX_SMALL_FILE:
        raise InvalidRequest(
            f"{path} of {model.title} has {human_size(found.size)}; a job reads at most"
            f" {human_size(MAX_SMALL_FILE)} of such a file"
        )
    with reg.db.read() as session:
        file = session.get_one(File, found.row)
    return b"".join(bytes(piece) for piece in reader.stream_pieces(file, 0, file.size))


def _refs(name: str, files: Sequence[InputFile], folder: str) -> dict[str, TensorRef]:
    refs: dict[str, TensorRef] = {}
    is_adapter = any(file.path == f"{folder}{ADAPTER_CONFIG}" for file in files)
    for file in files:
        inside = file.path.removeprefix(folder)
        if not file.path.startswith(folder) or (is_adapter and "/" in inside):
            continue
        for ref in [] if file.recipe is None else file.recipe.tensors():
            if ref.name is None:
                continue
            known = refs.setdefault(ref.name, ref)
            if known.tensor != ref.tensor:
                raise InvalidRequest(
                    f"{name} has two tensors named {ref.name}: remove the files that are not the"
                    " model's weights"
                )
    return refs


def _hold(
    reg: Registry, domain_id: int, name: str, refs: dict[str, TensorRef], job_id: str
) -> dict[str, InputTensor]:
    found: dict[bytes, Tensor] = {}
    for part in batches({ref.tensor for ref in refs.values()}, PART_TENSORS):
        with reg.db.write_beside() as session:
            here = resolve(session, domain_id, part)
            hold_for_job(session, (t.id for t in here.values()), job_id, reg.settings.hold_ttl_s)
        found |= here
    missing = [key for key, ref in refs.items() if ref.tensor not in found]
    if missing:
        raise TensorNotFound(f"tensor {missing[0]} of {name} is gone; run deltahub fsck")
    return {
        key: InputTensor(ref, found[ref.tensor].id, found[ref.tensor].depth)
        for key, ref in refs.items()
    }
