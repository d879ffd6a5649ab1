"""Makes the files of a result from stored tensors, and hashes them as a commit needs it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import select

from deltahub.codecs.files.recipe import Literal, Recipe, TensorRef
from deltahub.codecs.frames import tensor_spec
from deltahub.registry.db.models import File
from deltahub.registry.db.session import WriteSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.ingest.finish import VerifiedFile, attach_recipes, restore_hashes
from deltahub.registry.packs.holds import hold_for_job
from deltahub.registry.packs.locations import resolve
from deltahub.registry.packs.switch import insert_tensors, store_and_switch
from deltahub.registry.packs.writer import PackSpool, SealedPacks
from deltahub.registry.registry import Registry
from deltahub.registry.storage.spool import Hashes

_UNKNOWN_SHA256 = bytes(32)


@dataclass(frozen=True)
class MadeFile:
    """A file of a result, which can be read but is in no revision yet."""

    row: int
    sha256: str
    size: int


class FileMaker:
    """Makes files for one job in one domain."""

    def __init__(self, reg: Registry, reader: FileReader, domain_id: int, job_id: str) -> None:
        self._reg = reg
        self._reader = reader
        self._domain_id = domain_id
        self._job_id = job_id

    def replace_tensors(
        self,
        recipe: Recipe,
        contents: Mapping[str, bytes],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> MadeFile:
        """The file of a recipe with other contents for some tensors, by name, of the same dtypes.

        Reads the whole new file back from the store to hash it. progress(done, total): bytes of
        the file. DataLost.
        """
        segments = tuple(_replaced(segment, contents) for segment in recipe.segments)
        draft = replace(recipe, sha256=_UNKNOWN_SHA256, segments=segments)
        # Without anything in memory of the bytes that have to be verified.
        reader = FileReader(self._reg)
        hashes = restore_hashes(reader, self._domain_id, draft, progress)
        made = replace(draft, sha256=bytes.fromhex(hashes.sha256))
        recipe_id = self._store_recipe(made)
        with self._reg.db.write() as session:
            file = self._row(session, hashes)
            if file.state != "ingested":
                attach_recipes(session, [VerifiedFile(file, made, recipe_id)])
            recipe_row = file.recipe_tensor_id
            assert recipe_row is not None, "an ingested file has a recipe"
            hold_for_job(session, [recipe_row], self._job_id, self._reg.settings.hold_ttl_s)
            return MadeFile(file.id, file.sha256, file.size)

    def _store_recipe(self, recipe: Recipe) -> bytes:
        data, content = recipe.to_bytes(), recipe.id
        ttl_s = self._reg.settings.hold_ttl_s
        with self._reg.db.write() as session:
            found = resolve(session, self._domain_id, [content])
            hold_for_job(session, (t.id for t in found.values()), self._job_id, ttl_s)
        if found and found[content].lost is None:
            return content

        def read(first_byte: int, out: memoryview) -> None:
            out[:] = data[first_byte : first_byte + out.nbytes]

        def insert(session: WriteSession, sealed: SealedPacks) -> None:
            ids = insert_tensors(session, sealed, self._reg.settings.max_depth)
            hold_for_job(session, ids.values(), self._job_id, ttl_s)

        with PackSpool(self._reg, self._reader, self._domain_id) as spool:
            spool.encode(tensor_spec(content, "U8", (len(data),)), read)
            store_and_switch(self._reg, spool, insert)
        return content

    def _row(self, session: WriteSession, hashes: Hashes) -> File:
        query = select(File).where(File.domain_id == self._domain_id, File.sha256 == hashes.sha256)
        file = session.scalar(query)
        if file is None:
            file = File(
                domain_id=self._domain_id,
                sha256=hashes.sha256,
                size=hashes.n_bytes,
                git_blob_id=hashes.git_blob_id,
                state="proving",
            )
            session.add(file)
            session.flush()  # assigns file.id
        return file


def _replaced(segment: Literal | TensorRef, contents: Mapping[str, bytes]) -> Literal | TensorRef:
    if isinstance(segment, Literal) or segment.name is None or segment.name not in contents:
        return segment
    return replace(segment, tensor=contents[segment.name])
