"""The last step before a recipe replaces bytes: the whole file, read back from the store.

A file that does not come back with its SHA-256 is never switched to.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from sqlalchemy import delete, insert, select

from deltahub.codecs.files.recipe import Recipe
from deltahub.registry import failpoints
from deltahub.registry.db.batches import PART_TENSORS, batches
from deltahub.registry.db.models import File, FileTensor, utc_now
from deltahub.registry.db.session import WriteSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.downloads.recipe_index import RecipeIndex
from deltahub.registry.errors import Conflict, DataLost
from deltahub.registry.ingest import scan as scans
from deltahub.registry.ingest.scan import Scan
from deltahub.registry.packs.locations import TensorLocation, resolve_ids
from deltahub.registry.registry import Registry
from deltahub.registry.storage.spool import Hashes
from deltahub.registry.uploads.discard import delete_condemned, drop_landings


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """A file and the recipe that makes it, as has been read back from the store."""

    file: File
    recipe: Recipe
    recipe_id: bytes
    note: str | None = None


def restore_hashes(
    reader: FileReader,
    domain_id: int,
    recipe: Recipe,
    progress: Callable[[int, int], None] = lambda done, total: None,
    places: Mapping[bytes, TensorLocation] | None = None,
) -> Hashes:
    """SHA-256 and git blob id of what a recipe makes, from the store, in bounded memory.

    progress(done, total): called about every MiB; may raise to stop. places: see stream_recipe.
    DataLost.
    """
    hashes = Hashes(recipe.size)
    index = RecipeIndex(recipe)
    pieces = reader.stream_recipe(domain_id, index, 0, recipe.size, places=places)
    for piece in pieces:
        hashes.update(piece)
        progress(hashes.n_bytes, recipe.size)
    return hashes


def finish_files(
    reg: Registry,
    reader: FileReader,
    files: Iterable[tuple[File, Scan]],
    progress: Callable[[int], None] = lambda n: None,
) -> list[DataLost]:
    """Prove landed files' recipes, switch the files to them, delete the landings.

    All their tensors and the recipes must be stored. A file that other bytes come back for stays
    as it is, and what comes back says so; it does not keep the others. progress(n): called after
    every n bytes that were proved; may raise to stop.
    """
    damaged: list[DataLost] = []
    for group in _groups(files):
        proved: list[VerifiedFile] = []
        # Of a single file, which may have any number of tensors, a part at a time is looked up.
        places = _places(reader, group) if len(group) > 1 else None
        for file, scan in group:
            try:
                _verify(reader, file, scan, progress, places)
            except DataLost as exc:
                damaged.append(exc)
                # Another run shall look at the upload as it is then.
                scans.forget(reg, file)
            else:
                proved.append(VerifiedFile(file, scan.recipe, scan.recipe_id, scan.note))
        _switch(reg, proved)
    return damaged


def _groups(files: Iterable[tuple[File, Scan]]) -> Iterator[list[tuple[File, Scan]]]:
    """Files of one domain, as many as one transaction may switch; at least one."""
    group: list[tuple[File, Scan]] = []
    n_tensors = 0
    for file, scan in files:
        n_here = 1 + len(scan.recipe.segments)
        if group and (n_tensors + n_here > PART_TENSORS or file.domain_id != group[0][0].domain_id):
            yield group
            group, n_tensors = [], 0
        group.append((file, scan))
        n_tensors += n_here
    if group:
        yield group


def _places(
    reader: FileReader, group: Sequence[tuple[File, Scan]]
) -> Mapping[bytes, TensorLocation]:
    wanted = dict.fromkeys(
        content
        for _, scan in group
        for content in (scan.recipe_id, *(ref.tensor for ref in scan.recipe.tensors()))
    )
    return reader.look_up(group[0][0].domain_id, wanted)


def _verify(
    reader: FileReader,
    file: File,
    scan: Scan,
    progress: Callable[[int], None],
    places: Mapping[bytes, TensorLocation] | None,
) -> None:
    told = 0

    def tell(done: int, _total: int) -> None:
        nonlocal told
        told, n = done, done - told
        progress(n)

    hashes = restore_hashes(reader, file.domain_id, scan.recipe, tell, places)
    if hashes.sha256 != file.sha256 or hashes.n_bytes != file.size:
        raise DataLost(
            f"file {file.sha256} comes back from its recipe as {hashes.sha256}; its upload has"
            " changed on the disk since it was proved"
        )
    if reader.read_whole(file.domain_id, scan.recipe_id, places) != scan.recipe_bytes:
        raise DataLost(f"the stored recipe of file {file.sha256} is another one; run deltahub fsck")


def _switch(reg: Registry, proved: Sequence[VerifiedFile]) -> None:
    """Read these files of one domain from their recipes from now on."""
    if not proved:
        return
    dropped: list[str] = []
    with reg.db.write() as session:
        rows: dict[int, File] = {}
        for batch in batches(each.file.id for each in proved):
            rows.update(
                (row.id, row) for row in session.scalars(select(File).where(File.id.in_(batch)))
            )
        landed = [
            replace(each, file=row)
            for each in proved
            if (row := rows.get(each.file.id)) is not None
            and (row.sha256, row.domain_id) == (each.file.sha256, each.file.domain_id)
            and row.state == "landed"
        ]
        attach_recipes(session, landed)
        dropped = drop_landings(session, [each.file for each in landed])
        failpoints.reached("ingest.finish.before_commit")
    failpoints.reached("ingest.finish.after_commit")
    delete_condemned(reg, dropped)
    failpoints.reached("ingest.finish.after_delete")
    for each in proved:
        scans.forget(reg, each.file)


def attach_recipes(session: WriteSession, proved: Sequence[VerifiedFile]) -> None:
    """Make proved recipes the way to read these files, all of one domain.

    Conflict if a tensor is gone again.
    """
    if not proved:
        return
    wanted = {
        each.file.id: {ref.tensor for ref in each.recipe.tensors()} | {each.recipe_id}
        for each in proved
    }
    rows: list[dict[str, int]] = []
    found = resolve_ids(session, proved[0].file.domain_id, chain.from_iterable(wanted.values()))
    for each in proved:
        contents = wanted[each.file.id]
        if not contents <= found.keys():
            raise Conflict(
                f"tensors of file {each.file.sha256} were deleted meanwhile; repeat the job"
            )
        each.file.recipe_tensor_id = found[each.recipe_id]
        each.file.state = "ingested"
        each.file.kind = each.recipe.kind
        each.file.note = each.note
        each.file.ingested_at = utc_now()
        tensors = {found[content] for content in contents}
        rows.extend({"file_id": each.file.id, "tensor_id": tensor} for tensor in tensors)
    session.flush()
    for ids in batches(wanted):
        session.execute(delete(FileTensor).where(FileTensor.file_id.in_(ids)))
    for batch in batches(rows):
        session.execute(insert(FileTensor), batch)
