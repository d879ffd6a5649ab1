"""The weight files of a revision and the tensors in them."""

from sqlalchemy import Select, select

from deltahub.codecs.errors import CodecError
from deltahub.codecs.files.recipe import Recipe, TensorRef
from deltahub.registry.db.models import Entry, File
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost


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


def safetensors_files(revision_id: int) -> Select[File]:
    """A query for the ingested safetensors files of a revision, in order of path."""
    return (
        select(File)
        .join(Entry, Entry.file_id == File.id)
        .where(
            Entry.revision_id == revision_id, File.state == "ingested", File.kind == "safetensors"
        )
        .order_by(Entry.path)
    )
