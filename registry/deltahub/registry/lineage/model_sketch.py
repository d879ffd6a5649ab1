"""Sketches of a revision. They find its family before ingest; later models find it by them."""

from collections.abc import Callable
from functools import partial

from sqlalchemy import select

from deltahub.codecs.errors import CodecError
from deltahub.codecs.files.split import SAFETENSORS_SUFFIX, plan_file
from deltahub.registry.catalog.weights import named_tensors, safetensors_files
from deltahub.registry.db.models import File
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.lineage.target import Target
from deltahub.registry.lineage.tensor_sketch import Sketchable, TensorSketch, choose, sketch
from deltahub.registry.packs.locations import resolve
from deltahub.registry.packs.reading.chain import TensorGone
from deltahub.registry.registry import Registry


def sketch_revision(reg: Registry, reader: FileReader, revision_id: int) -> list[TensorSketch]:
    """The sketches of the tensors that represent a revision's model, ingested or not."""
    with reg.db.read() as session:
        rows = session.execute(
            select(Entry.path, File)
            .join(File, File.id == Entry.file_id)
            .where(
                Entry.revision_id == revision_id,
                Entry.path.endswith(SAFETENSORS_SUFFIX, autoescape=True),
                File.state.in_(("landed", "ingested")),
            )
            .order_by(Entry.path)
        )
        files = [(path, file) for path, file in rows]
    tensors: list[Sketchable] = []
    for path, file in files:
        if file.recipe_tensor_id is None:
            tensors += _landed_tensors(reader, path, file)
        else:
            tensors += ingested_tensors(reader, file)
    sketches = [sketch(tensor) for tensor in choose(tensors)]
    return [found for found in sketches if found is not None]


def sketch_stored(
    reg: Registry, reader: FileReader, revision_id: int
) -> list[tuple[int, TensorSketch]]:
    """(tensor row, sketch) of the tensors that represent an ingested revision's model."""
    with reg.db.read() as session:
        files = list(session.scalars(safetensors_files(revision_id)))
        if not files:
            return []
        target = Target.load(session, revision_id)
    tensors: list[Sketchable] = []
    rows: dict[str, int] = {}
    # This reader caches blocks and locations, because a sketch reads a tensor at 16 places.
    read_stored = reader.base_reader(target.domain_id)
    for file in files:
        refs = named_tensors(reader, file)
        with reg.db.read() as session:
            stored = resolve(session, target.domain_id, (ref.tensor for _, ref in refs))
        for name, ref in refs:
            row = stored.get(ref.tensor)
            if row is not None and name not in rows:
                rows[name] = row.id
                read = partial(read_stored, ref.tensor)
                tensors.append(Sketchable(name, ref.dtype, ref.shape, read))
    found = [(rows[tensor.name], sketch(tensor)) for tensor in choose(tensors)]
    return [(row_id, made) for row_id, made in found if made is not None]


def read_from(reader: FileReader, file: File, start: int = 0) -> Callable[[int, memoryview], None]:
    """A function read(first_byte, out) of a file's bytes; first_byte counts from `start`."""

    def read(first_byte: int, out: memoryview) -> None:
        position = 0
        first = start + first_byte
        for piece in reader.stream_file(file, first, first + out.nbytes):
            out[position : position + piece.nbytes] = piece
            position += piece.nbytes

    return read


def ingested_tensors(reader: FileReader, file: File) -> list[Sketchable]:
    """The tensors of an ingested file.

    A reader of the file would look up the recipe and all locations at each place that a sketch
    reads. The reader of tensors caches them.
    """
    read_stored = reader.base_reader(file.domain_id)

    def read(tensor: bytes, first_byte: int, out: memoryview) -> None:
        try:
            read_stored(tensor, first_byte, out)
        except TensorGone:
            reader.check_is_there(file)
            raise

    return [
        Sketchable(name, ref.dtype, ref.shape, partial(read, ref.tensor))
        for name, ref in named_tensors(reader, file)
    ]


def _landed_tensors(reader: FileReader, path: str, file: File) -> list[Sketchable]:
    """The tensors of a file that is not ingested yet; none if it is not valid safetensors."""
    read = read_from(reader, file)

    def read_at(offset: int, length: int) -> bytearray:
        out = bytearray(length)
        read(offset, memoryview(out))
        return out

    try:
        plan = plan_file(read_at, file.size, path)
    except CodecError:
        return []  # ingest stores the error in the file's note
    return [
        Sketchable(piece.name, piece.dtype, piece.shape, read_from(reader, file, piece.start))
        for piece in plan.tensor_pieces()
        if piece.name is not None
    ]
