"""Makes the files of a result from stored tensors, and hashes them as a commit needs it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from deltahub.codecs.files.new_header import new_header
from deltahub.codecs.files.recipe import MAX_LITERAL, Literal, Recipe, TensorRef
from deltahub.registry.db.shared.retried import retried
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.ingest.finish import restore_hashes
from deltahub.registry.ingest.verify_recipe import store_recipe, verified_file
from deltahub.registry.landings.condemned import delete_condemned
from deltahub.registry.packs.holds import hold_for_job
from deltahub.registry.registry import Registry
from deltahub.registry.storage.checksums import Hashes

_UNKNOWN_SHA256 = bytes(32)


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
    ) -> int:
        """The row of a file like a recipe's, but with other contents for some tensors.

        contents: tensor name -> content id of a stored tensor of the same dtype and shape.

        Reads the whole new file back from the store to hash it. progress(done, total): bytes of
        the file. DataLost.
        """
        segments = tuple(_replaced(segment, contents) for segment in recipe.segments)
        return self._store(replace(recipe, sha256=_UNKNOWN_SHA256, segments=segments), progress)

    def new_file(
        self,
        tensors: Sequence[TensorRef],
        metadata: Mapping[str, str],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> int:
        """The row of a new safetensors file of stored tensors, in this order. Else as above."""
        header = new_header(
            ((str(each.name), each.dtype, each.shape) for each in tensors), metadata
        )
        literals = [
            Literal(header[at : at + MAX_LITERAL]) for at in range(0, len(header), MAX_LITERAL)
        ]
        size = len(header) + sum(each.size for each in tensors)
        draft = Recipe(size, _UNKNOWN_SHA256, "safetensors", (*literals, *tensors))
        return self._store(draft, progress)

    def _store(self, draft: Recipe, progress: Callable[[int, int], None]) -> int:
        # Without anything in memory of the bytes that have to be verified.
        reader = FileReader(self._reg)
        hashes = restore_hashes(reader, self._domain_id, draft, progress)
        made = replace(draft, sha256=bytes.fromhex(hashes.sha256))
        data, content = made.to_bytes(), made.id
        store_recipe(self._reg, self._reader, self._job_id, self._domain_id, content, data)
        row, dropped = self._enter(made, hashes)
        delete_condemned(self._reg, dropped)
        return row

    @retried
    def _enter(self, made: Recipe, hashes: Hashes) -> tuple[int, list[str]]:
        """(the file's row, ids for delete_condemned)."""
        with self._reg.db.write_beside() as session:
            file, dropped = verified_file(session, self._domain_id, made, made.id, hashes)
            recipe_row = file.recipe_tensor_id
            assert recipe_row is not None, "an ingested file has a recipe"
            hold_for_job(session, [recipe_row], self._job_id, self._reg.settings.hold_ttl_s)
            return file.id, dropped


def _replaced(segment: Literal | TensorRef, contents: Mapping[str, bytes]) -> Literal | TensorRef:
    if isinstance(segment, Literal) or segment.name is None or segment.name not in contents:
        return segment
    return replace(segment, tensor=contents[segment.name])
