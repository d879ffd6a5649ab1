"""The weights of a revision: its safetensors files and their tensors."""

from collections.abc import Mapping
from hashlib import sha256

from sqlalchemy import ColumnElement, Select, and_, or_, select

from deltahub.codecs.errors import CodecError
from deltahub.codecs.files.recipe import Recipe, TensorRef
from deltahub.registry.db.expressions import total
from deltahub.registry.db.models import File, FileTensor
from deltahub.registry.db.session import ReadSession
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost


def is_safetensors() -> ColumnElement[bool]:
    """True for a file that was ingested as safetensors."""
    return File.kind == "safetensors"


def safetensors_files(revision_id: int) -> Select[File]:
    """A query for the ingested safetensors files of a revision, in order of path; no lost ones."""
    is_whole = File.state == "ingested"
    return _files(revision_id).where(is_safetensors(), is_whole).order_by(Entry.path)


def weight_tensors(revision_id: int) -> Select[int]:
    """A query for the tensors of a revision's safetensors files, once for each file.

    The tensor that holds a file's recipe is not a weight. Callers may add conditions on File.
    """
    return (
        _files(revision_id)
        .join(FileTensor, FileTensor.file_id == File.id)
        .where(is_safetensors(), FileTensor.tensor_id != File.recipe_tensor_id)
        .with_only_columns(FileTensor.tensor_id)
    )


def has_weights(session: ReadSession, revision_id: int) -> bool:
    """Whether a revision has a safetensors file, ingested or not."""
    is_coming = and_(File.state != "ingested", Entry.path.endswith(".safetensors"))
    query = _files(revision_id).where(or_(is_safetensors(), is_coming))
    return session.scalar(query.with_only_columns(File.id).limit(1)) is not None


def weight_bytes(session: ReadSession, revision_id: int) -> int:
    """The size of a revision's ingested safetensors files; a file with two paths counts twice."""
    query = _files(revision_id).where(is_safetensors()).with_only_columns(total(File.size))
    return session.scalar(query) or 0


def named_tensors(reader: FileReader, file: File) -> list[tuple[str, TensorRef]]:
    """(name, tensor) of an ingested safetensors file, in the order of the file."""
    try:
        recipe = Recipe.from_bytes(reader.read_recipe(file))
    except CodecError as exc:
        raise DataLost(f"the recipe of file {file.sha256}: {exc}") from exc
    return [
        (segment.name, segment)
        for segment in recipe.segments
        if isinstance(segment, TensorRef) and segment.name is not None
    ]


def digest_of(tensors: Mapping[str, TensorRef]) -> str:
    """SHA-256 over the names and content ids of a model's tensors, whatever its files are."""
    digest = sha256()
    for name, ref in sorted(tensors.items()):
        digest.update(name.encode() + b"\0" + ref.tensor)
    return digest.hexdigest()


def _files(revision_id: int) -> Select[File]:
    return (
        select(File).join(Entry, Entry.file_id == File.id).where(Entry.revision_id == revision_id)
    )
