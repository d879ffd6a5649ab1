"""The last step of ingest: rebuild each file from the store, then switch it to its recipe.

If the rebuilt bytes do not have the file's SHA-256, the file keeps its landing.
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
from deltahub.registry.errors import DataLost, Unavailable
from deltahub.registry.ingest import scan as scans
from deltahub.registry.ingest.scan import Scan
from deltahub.registry.landings.condemned import delete_condemned
from deltahub.registry.losses.marks import any_lost
from deltahub.registry.packs.locations import TensorLocation, resolve_ids
from deltahub.registry.registry import Registry
from deltahub.registry.storage.checksums import Hashes
from deltahub.registry.uploads.discard import drop_landings


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """A file and its recipe, which was verified by rebuilding the file from the store."""

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
    """SHA-256 and git blob id of the file that a recipe rebuilds from the store; DataLost.

    progress(done, total): called about every MiB; may raise to stop. places: see stream_recipe.
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
    """Verify the recipes of landed files, switch the files to them, delete the landings.

    All tensors and recipes must be stored. A file whose rebuilt bytes differ stays as it is, and
    the result has a DataLost for it; the other files are switched all the same. progress(n): called
    after every n verified bytes; may raise to stop.
    """
    damaged: list[DataLost] = []
    for group in _groups(files):
        verified: list[VerifiedFile] = []
        # A single file may have any number of tensors, so its tensors are looked up in parts.
        places = _places(reader, group) if len(group) > 1 else None
        for file, scan in group:
            try:
                _verify(reader, file, scan, progress, places)
            except DataLost as exc:
                damaged.append(exc)
                # The next run scans the upload again, in case it has changed since.
                scans.forget(reg, file)
            else:
                verified.append(VerifiedFile(file, scan.recipe, scan.recipe_id, scan.note))
        _switch(reg, verified)
    return damaged


def _groups(files: Iterable[tuple[File, Scan]]) -> Iterator[list[tuple[File, Scan]]]:
    """Groups of files of one domain, each as large as one transaction may switch."""
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
    reported = 0

    def report(done: int, _total: int) -> None:
        nonlocal reported
        reported, n = done, done - reported
        progress(n)

    hashes = restore_hashes(reader, file.domain_id, scan.recipe, report, places)
    if hashes.sha256 != file.sha256 or hashes.n_bytes != file.size:
        raise DataLost(
            f"file {file.sha256} comes back from its recipe as {hashes.sha256}; its upload has"
            " changed on the disk since it was verified"
        )
    if reader.read_whole(file.domain_id, scan.recipe_id, places) != scan.recipe_bytes:
        raise DataLost(f"the stored recipe of file {file.sha256} is another one; run deltahub fsck")


def _switch(reg: Registry, verified: Sequence[VerifiedFile]) -> None:
    """Make these files of one domain readable by their recipes, and delete their landings."""
    if not verified:
        return
    dropped: list[str] = []
    with reg.db.write_beside() as session:
        rows: dict[int, File] = {}
        for batch in batches(sorted(each.file.id for each in verified)):
            query = select(File).where(File.id.in_(batch)).order_by(File.id).with_for_update()
            rows.update((row.id, row) for row in session.scalars(query))
        landed = [
            replace(each, file=row)
            for each in verified
            if (row := rows.get(each.file.id)) is not None
            and (row.sha256, row.domain_id) == (each.file.sha256, each.file.domain_id)
            # A landing that was found to be damaged meanwhile is not needed any more.
            and (row.state == "landed" or (row.state == "lost" and row.landing_id is not None))
        ]
        attach_recipes(session, landed)
        dropped = drop_landings(session, [each.file for each in landed])
        failpoints.reached("ingest.finish.before_commit")
    failpoints.reached("ingest.finish.after_commit")
    delete_condemned(reg, dropped)
    failpoints.reached("ingest.finish.after_delete")
    for each in verified:
        scans.forget(reg, each.file)


def attach_recipes(session: WriteSession, verified: Sequence[VerifiedFile]) -> None:
    """Set verified recipes as the source of these files, all of one domain.

    Unavailable if a tensor was deleted, or marked as lost, in the meantime: the job is then
    repeated and stores it.
    """
    if not verified:
        return
    wanted = {
        each.file.id: {ref.tensor for ref in each.recipe.tensors()} | {each.recipe_id}
        for each in verified
    }
    rows: list[dict[str, int]] = []
    found = resolve_ids(session, verified[0].file.domain_id, chain.from_iterable(wanted.values()))
    if any_lost(session, found.values()):
        raise Unavailable("tensors of these files were found to be lost meanwhile")
    for each in verified:
        contents = wanted[each.file.id]
        if not contents <= found.keys():
            raise Unavailable(f"tensors of file {each.file.sha256} were deleted meanwhile")
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
