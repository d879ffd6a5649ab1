"""The last step before a recipe replaces bytes: the whole file, read back from the store.

A file that does not come back with its SHA-256 is never switched to.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from sqlalchemy import delete, exists, insert, select

from deltahub.codecs.recipe import Recipe
from deltahub.registry import failpoints, ingest_plan
from deltahub.registry.db.models import File, FileTensor, Landing, Tensor, utc_now
from deltahub.registry.db.session import WriteSession
from deltahub.registry.errors import Conflict, DataLost
from deltahub.registry.ingest_plan import Scan
from deltahub.registry.landing import is_promised
from deltahub.registry.locations import batches, resolve
from deltahub.registry.recipe_index import RecipeIndex
from deltahub.registry.registry import Registry
from deltahub.registry.restore import Restorer
from deltahub.registry.spool import Hashes
from deltahub.registry.store.keys import landing_key


def restore_hashes(
    restorer: Restorer,
    domain_id: int,
    recipe: Recipe,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Hashes:
    """SHA-256 and git blob id of what a recipe makes, from the store, in bounded memory.

    progress(done, total): called about every MiB; may raise to stop. DataLost.
    """
    hashes = Hashes(recipe.size)
    index = RecipeIndex(recipe)
    for piece in restorer.stream_recipe(domain_id, index, 0, recipe.size):
        hashes.update(piece)
        progress(hashes.n_bytes, recipe.size)
    return hashes


def finish_file(
    reg: Registry,
    restorer: Restorer,
    file: File,
    scan: Scan,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Prove a landed file's recipe, switch the file to it, delete the landing.

    All its tensors and the recipe must be stored. DataLost if other bytes come back; then the
    file stays as it is.
    """
    hashes = restore_hashes(restorer, file.domain_id, scan.recipe, progress)
    if hashes.sha256 != file.sha256 or hashes.n_bytes != file.size:
        raise DataLost(
            f"file {file.sha256} comes back from its recipe as {hashes.sha256}; its upload has"
            " changed on the disk since it was proved"
        )
    dropped: list[str] = []
    with reg.db.write() as session:
        row = session.get(File, file.id)
        if row is not None and row.sha256 == file.sha256 and row.state == "landed":
            attach_recipe(session, row, scan.recipe, scan.recipe_id, scan.note)
            dropped = drop_landing(session, row)
        failpoints.reached("ingest.finish.before_commit")
    failpoints.reached("ingest.finish.after_commit")
    delete_condemned(reg, dropped)
    failpoints.reached("ingest.finish.after_delete")
    ingest_plan.forget(reg, file)


def attach_recipe(
    session: WriteSession, file: File, recipe: Recipe, recipe_id: bytes, note: str | None
) -> None:
    """Make a proved recipe the way to read the file. Conflict if a tensor is gone again."""
    wanted = {ref.tensor for ref in recipe.tensors()} | {recipe_id}
    found: Mapping[bytes, Tensor] = resolve(session, file.domain_id, wanted)
    if len(found) != len(wanted):
        raise Conflict(f"tensors of file {file.sha256} were deleted meanwhile; repeat the job")
    file.recipe_tensor_id = found[recipe_id].id
    file.state = "ingested"
    file.kind = recipe.kind
    file.note = note
    file.ingested_at = utc_now()
    session.flush()
    session.execute(delete(FileTensor).where(FileTensor.file_id == file.id))
    for batch in batches(tensor.id for tensor in found.values()):
        session.execute(
            insert(FileTensor), [{"file_id": file.id, "tensor_id": row_id} for row_id in batch]
        )


def drop_landing(session: WriteSession, file: File) -> list[str]:
    """Take the landing from a file that has a recipe; ids of objects to delete afterwards."""
    landing_id, file.landing_id = file.landing_id, None
    session.flush()
    return [] if landing_id is None else drop_unused(session, [landing_id])


def drop_unused(session: WriteSession, landing_ids: Iterable[str]) -> list[str]:
    """Condemn landings that no file is read from; delete_condemned() is to follow the commit.

    One that somebody was told is here stays until it expires: they may commit it elsewhere. A
    condemned row gives up its name, so that the same bytes may be uploaded anew, and stays until
    its object is gone: after a crash gc finds it, and no object is without a row.
    """
    dropped = []
    for landing_id in landing_ids:
        row = session.get(Landing, landing_id, populate_existing=True)
        if row is None or is_promised(row):
            continue
        if not session.scalar(select(exists().where(File.landing_id == landing_id))):
            row.state, row.sha256 = "condemned", f"condemned-{landing_id}"
            row.expires_at = utc_now()
            dropped.append(landing_id)
    session.flush()
    return dropped


def delete_condemned(reg: Registry, landing_ids: Sequence[str]) -> None:
    """The objects of condemned landings, then their rows."""
    for landing_id in landing_ids:
        reg.store.delete(landing_key(landing_id))
    failpoints.reached("landing.delete.before_rows")
    if landing_ids:
        with reg.db.write() as session:
            for batch in batches(landing_ids):
                session.execute(
                    delete(Landing).where(Landing.id.in_(batch), Landing.state == "condemned")
                )
