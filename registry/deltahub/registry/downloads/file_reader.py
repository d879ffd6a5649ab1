"""Reads files and ranges of files: from the landing before ingest, from the recipe after it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from deltahub.codecs.errors import CodecError
from deltahub.codecs.files.recipe import Recipe
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File
from deltahub.registry.db.versioned_cache import Memo
from deltahub.registry.downloads.recipe_index import Piece, RecipeIndex
from deltahub.registry.errors import DataLost, EntryNotFound, NotReady
from deltahub.registry.landings.reader import LandingReader
from deltahub.registry.packs.base_cache import HotBases
from deltahub.registry.packs.block_cache import ByteCache
from deltahub.registry.packs.locations import TensorLocation, resolve_ids
from deltahub.registry.packs.reading.chain import TensorGone
from deltahub.registry.packs.reading.read_ahead import Span, tensor_spans
from deltahub.registry.packs.tensor_reader import FIRST_RANGE_BYTES, MIB, RANGE_BYTES, TensorReader
from deltahub.registry.storage.base import ObjectNotFound

if TYPE_CHECKING:
    from deltahub.registry.registry import Registry

T = TypeVar("T")

# Segments of a recipe whose tensors one short transaction locates.
LOOKUP_SEGMENTS = 256
RECIPE_CACHE_BYTES = 8 * MIB
DIFFERENCE_CACHE_BYTES = 32 * MIB


class ServedBytes:
    """Counts the bytes that were served: rebuilt from frames, or read from uploads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.from_frames = 0
        self.from_uploads = 0

    def add(self, *, from_frames: int = 0, from_uploads: int = 0) -> None:
        with self._lock:  # several threads read files at the same time
            self.from_frames += from_frames
            self.from_uploads += from_uploads


class FileReader(TensorReader):
    """Reads files for one process; safe to share between threads. See TensorReader for memory."""

    def __init__(
        self,
        registry: "Registry",
        cache_bytes: int | None = None,
        hot_bases: HotBases | None = None,
    ) -> None:
        super().__init__(registry, cache_bytes, hot_bases)
        self.served = ServedBytes()
        # (SHA-256 of the file, recipe id) -> index. Row ids are no keys: they may be reused.
        self._recipes: ByteCache[tuple[str, bytes], RecipeIndex] = ByteCache(RECIPE_CACHE_BYTES)
        # (tensor, base, first byte, bytes) of a frame that was encoded for a reader -> the frame:
        # all engines of a run ask for the same ones at about the same time.
        self.differences: ByteCache[tuple[bytes, bytes, int, int], bytes] = ByteCache(
            DIFFERENCE_CACHE_BYTES
        )
        # Row id -> location of the recipe: a Xet download needs the same recipe every 64 MiB.
        self._recipe_places: Memo[int, TensorLocation | None] = Memo(registry.db)

    @property
    def caches(self) -> Mapping[str, ByteCache[Any, Any]]:
        """What is kept in memory, by name: for monitoring."""
        return {
            "blocks": self._blocks,
            "places": self._places,
            "recipes": self._recipes,
            "differences": self.differences,
        }

    def stream_file(
        self, file: File, start: int, end: int, chunk_bytes: int = MIB
    ) -> Iterator[memoryview]:
        """Bytes [start, end) of a file, in buffers of about chunk_bytes.

        file: its row, however long ago it was read. NotReady if the file is not verified yet,
        EntryNotFound if it is gone, DataLost if stored bytes are damaged.
        """
        return _rechunked(self.stream_pieces(file, start, end), chunk_bytes)

    def stream_pieces(self, file: File, start: int, end: int) -> Iterator[memoryview]:
        """Like stream_file, in buffers of any size up to RANGE_BYTES (or one block, if larger)."""
        if not 0 <= start <= end <= file.size:
            raise ValueError(f"bytes {start}..{end} of a file of {file.size}")
        return self._file_pieces(file, start, end)

    def stream_recipe(
        self,
        domain_id: int,
        recipe: RecipeIndex,
        start: int,
        end: int,
        chunk_bytes: int = MIB,
        places: Mapping[bytes, TensorLocation] | None = None,
    ) -> Iterator[memoryview]:
        """Bytes [start, end) of the file that a recipe describes, for a domain.

        All tensors of the recipe must have rows now: cached locations are not used.
        places: a fresh result of look_up() for all tensors of the recipe; None looks them up.
        """
        pieces = self._recipe_pieces(
            domain_id, recipe, start, end, is_verification=True, known=places
        )
        return _rechunked(pieces, chunk_bytes)

    def look_up(self, domain_id: int, contents: Iterable[bytes]) -> dict[bytes, TensorLocation]:
        """Content id -> location of the tensor that it means in a domain, if there is one.

        Small frames of these tensors are prefetched.
        """
        places: dict[bytes, TensorLocation] = {}
        with self._registry.db.read() as session:
            ids = resolve_ids(session, domain_id, contents)
        located = self.locate(ids.values())
        for content, row in ids.items():
            # Between the two reads, a row may have been deleted and its id given to another tensor.
            if row in located and located[row].hash == content:
                places[content] = located[row]
                self._remember(domain_id, located[row])
        self.frames.prefetch(frame for tensor in located.values() for frame in tensor.frames)
        return places

    def read_whole(
        self, domain_id: int, content: bytes, places: Mapping[bytes, TensorLocation] | None = None
    ) -> bytes:
        """All bytes of a stored tensor that fits into memory, such as a recipe; DataLost.

        places: as for stream_recipe.
        """
        known = self.look_up(domain_id, [content]) if places is None else places
        if content not in known:
            raise TensorGone(f"tensor {content.hex()} is gone; run deltahub fsck")
        tensor = known[content]
        return b"".join(self._tensor_pieces(domain_id, tensor, 0, tensor.size, RANGE_BYTES))

    def read_recipe(self, file: File) -> bytes:
        """The recipe of an ingested file in bytes. It raises what load_recipe raises."""
        return self._current(self._recipe_bytes, file)

    def load_recipe(self, file: File) -> Recipe:
        """The recipe of an ingested file, parsed.

        NotReady if the file is not ingested, EntryNotFound if it is gone, DataLost.
        """
        return self._current(self._recipe_as_of, file)

    def load_recipes(self, files: Iterable[File]) -> Iterator[Recipe]:
        """The recipes of ingested files, in their order, located many at a time.

        It raises what load_recipe raises.
        """
        for part in batches(files):
            rows = (file.recipe_tensor_id for file in part)
            places = self.locate(row for row in rows if row is not None)
            for file in part:
                place = places.get(file.recipe_tensor_id or 0)
                try:
                    data = None if place is None else self._read_recipe(place)
                    recipe = None if data is None else self._parse(file, data)
                except DataLost:
                    recipe = None  # the file has changed since, or its recipe is damaged
                yield self.load_recipe(file) if recipe is None else recipe

    def check_is_there(self, file: File) -> File:
        """The file's current row; EntryNotFound if the file was deleted after `file` was read."""
        with self._registry.db.read() as session:
            fresh = session.get(File, file.id)
        if fresh is None or fresh.sha256 != file.sha256 or fresh.domain_id != file.domain_id:
            raise EntryNotFound(f"file {file.sha256} has been deleted")
        return fresh

    def _current(self, read: Callable[[File], T], file: File) -> T:
        """read(file), repeated with the current row if the given one was outdated."""
        try:
            return read(file)
        except DataLost:
            fresh = self.check_is_there(file)
            if fresh.recipe_tensor_id == file.recipe_tensor_id:
                raise
        return read(fresh)

    def _recipe_as_of(self, file: File) -> Recipe:
        return self._parse(file, self._read_recipe(self._locate_recipe(file)))

    def _recipe_bytes(self, file: File) -> bytes:
        data = self._read_recipe(self._locate_recipe(file))
        self._parse(file, data)
        return data

    def _parse(self, file: File, data: bytes) -> Recipe:
        try:
            recipe = Recipe.from_bytes(data)
        except CodecError as exc:
            raise DataLost(f"the recipe of file {file.sha256}: {exc}; run deltahub fsck") from exc
        # The file may have been deleted after `file` was read, and its ids given to another file.
        if recipe.sha256.hex() != file.sha256 or recipe.size != file.size:
            raise DataLost(f"the recipe of file {file.sha256} is gone; run deltahub fsck")
        return recipe

    def _locate_recipe(self, file: File) -> TensorLocation:
        if file.recipe_tensor_id is None:
            raise NotReady(f"file {file.sha256} is not ingested yet; wait for its job")
        row = file.recipe_tensor_id
        location = self._recipe_places.get(row, lambda: self.locate([row]).get(row))
        if location is None:
            raise DataLost(f"the recipe of file {file.sha256} is gone; run deltahub fsck")
        return location

    def _read_recipe(self, location: TensorLocation) -> bytes:
        located = {location.id: location}
        return b"".join(self.stream_tensor(located, location.id, 0, location.size))

    def _file_pieces(self, file: File, start: int, end: int) -> Iterator[memoryview]:
        """The bytes from where the file's row says that they are, read again if that fails."""
        position = start
        while True:
            pieces = (
                self._landing_pieces(file, position, end)
                if file.recipe_tensor_id is None
                else self._ingested_pieces(file, position, end)
            )
            try:
                for piece in pieces:
                    yield piece
                    position += piece.nbytes
                return
            except (ObjectNotFound, DataLost) as exc:
                file = self._moved(file, exc)
            if position == end:
                return

    def _moved(self, file: File, exc: Exception) -> File:
        """The file's current row, if it says another source than the one that failed; DataLost.

        The file was ingested meanwhile, or it was damaged and somebody has pushed it again.
        """
        fresh = self.check_is_there(file)
        if (fresh.recipe_tensor_id, fresh.landing_id) != (file.recipe_tensor_id, file.landing_id):
            return fresh
        if isinstance(exc, DataLost):
            raise exc
        raise DataLost(f"the upload of {file.sha256} is gone; run deltahub fsck") from exc

    def _ingested_pieces(self, file: File, start: int, end: int) -> Iterator[memoryview]:
        if start == end:
            return
        recipe = self._recipe_of(file)
        for piece in self._recipe_pieces(file.domain_id, recipe, start, end):
            self.served.add(from_frames=piece.nbytes)
            yield piece

    def _landing_pieces(self, file: File, start: int, end: int) -> Iterator[memoryview]:
        if file.landing_id is None:
            raise NotReady(f"file {file.sha256} is not verified yet; wait for its job")
        for piece in LandingReader(self._registry, file.landing_id).pieces(start, end):
            self.served.add(from_uploads=piece.nbytes)
            yield piece

    def _recipe_pieces(
        self,
        domain_id: int,
        recipe: RecipeIndex,
        start: int,
        end: int,
        *,
        is_verification: bool = False,
        known: Mapping[bytes, TensorLocation] | None = None,
    ) -> Iterator[memoryview]:
        pieces = recipe.pieces(start, end)
        first_range = FIRST_RANGE_BYTES
        while batch := list(islice(pieces, LOOKUP_SEGMENTS)):
            places = (
                self._locate_pieces(domain_id, batch, is_verification) if known is None else known
            )
            ahead = self.read_ahead(self._spans(batch, places))
            position = 0
            for piece in batch:
                if piece.literal is not None:
                    yield memoryview(piece.literal)[piece.first : piece.end]
                    position += piece.end - piece.first
                elif piece.tensor in places:
                    for part in self._tensor_pieces(
                        domain_id, places[piece.tensor], piece.first, piece.end, first_range
                    ):
                        yield part
                        position += part.nbytes
                        ahead.advance(position)
                    first_range = RANGE_BYTES
                else:
                    raise TensorGone(f"tensor {piece.tensor.hex()} is gone; run deltahub fsck")

    def _spans(
        self, pieces: Iterable[Piece], places: Mapping[bytes, TensorLocation]
    ) -> Iterator[Span]:
        position = 0
        for piece in pieces:
            if piece.literal is None and piece.tensor in places:
                yield from tensor_spans(
                    position, places[piece.tensor], piece.first, piece.end, self.bases_in_packs
                )
            position += piece.end - piece.first

    def _locate_pieces(
        self, domain_id: int, pieces: Iterable[Piece], is_verification: bool
    ) -> dict[bytes, TensorLocation]:
        """Content id -> location, from the cache unless is_verification."""
        wanted = dict.fromkeys(piece.tensor for piece in pieces if piece.literal is None)
        places: dict[bytes, TensorLocation] = {}
        for content in wanted:
            known = None if is_verification else self._places.get((domain_id, content))
            if known is not None:
                places[content] = known
        missing = [content for content in wanted if content not in places]
        return places | self.look_up(domain_id, missing) if missing else places

    def _tensor_pieces(
        self, domain_id: int, tensor: TensorLocation, first: int, end: int, first_range: int
    ) -> Iterator[memoryview]:
        """The tensor's bytes [first, end). An outdated location is removed from the cache."""
        located = {tensor.id: tensor}
        try:
            yield from self.stream_tensor(located, tensor.id, first, end, first_range)
        except DataLost:
            self._places.forget((domain_id, tensor.hash))
            raise
        if located[tensor.id] is not tensor:
            self._places.forget((domain_id, tensor.hash))

    def _recipe_of(self, file: File) -> RecipeIndex:
        location = self._locate_recipe(file)
        index = self._recipes.get((file.sha256, location.hash))
        if index is None:
            index = RecipeIndex(self._parse(file, self._read_recipe(location)))
            self._recipes.put((file.sha256, location.hash), index, index.memory_bytes)
        return index


def _rechunked(pieces: Iterator[memoryview], chunk_bytes: int) -> Iterator[memoryview]:
    """The same bytes: small pieces are joined, large ones split, and large ones are not copied."""
    pending: list[memoryview] = []
    n_pending = 0
    for piece in pieces:
        if n_pending and n_pending + piece.nbytes > chunk_bytes:
            yield memoryview(b"".join(pending))
            pending, n_pending = [], 0
        if n_pending == 0 and piece.nbytes >= chunk_bytes // 4:
            for begin in range(0, piece.nbytes, chunk_bytes):
                yield piece[begin : begin + chunk_bytes]
        elif piece.nbytes:
            pending.append(piece)
            n_pending += piece.nbytes
    if n_pending:
        yield memoryview(b"".join(pending))
