"""Compares stored recipes and, with --read-data, all stored bytes with the pushed hashes."""

import hashlib
from collections.abc import Iterator

from blake3 import blake3
from sqlalchemy import select

from deltahub.codecs.errors import CodecError
from deltahub.codecs.files.recipe import Recipe
from deltahub.codecs.frames.pack import verify_pack_hash
from deltahub.codecs.registry import BY_ID
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import File, FileTensor, Landing, Pack, Tensor, Xorb
from deltahub.registry.db.tables.scrub import PackCopy
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import RegistryError, Unavailable
from deltahub.registry.landings.reader import hashes_of
from deltahub.registry.losses.findings import text_of
from deltahub.registry.maintenance.fsck.cursor import Cursor
from deltahub.registry.maintenance.fsck.findings import Finding, Findings, code_of
from deltahub.registry.maintenance.fsck.objects import live_packs
from deltahub.registry.packs.copy import pack_chunks
from deltahub.registry.packs.locations import TensorLocation, bases_of
from deltahub.registry.registry import Registry
from deltahub.registry.replicas.copies import is_right
from deltahub.registry.storage.base import ObjectNotFound, StoreError, StoreUnavailable
from deltahub.registry.storage.keys import landing_key, second_copy_key
from deltahub.registry.xet.hashes import to_text
from deltahub.registry.xet.receive_xorb import root_in_store
from deltahub.registry.xet.xorb import XorbIndex

PAGE = 500
READ_BYTES = 4 << 20


def check_recipes(reg: Registry, reader: FileReader, cursor: Cursor) -> Findings:
    """Check that each recipe is of its file, and needs exactly the tensors in the file's rows."""
    for file in _files(reg, cursor):
        if file.state != "ingested":
            continue
        try:
            recipe = Recipe.from_bytes(reader.read_recipe(file))
        except (RegistryError, CodecError, StoreError) as exc:
            if _is_unchanged(reg, file):
                text = text_of("the recipe of file", file.sha256, exc)
                yield Finding(code_of(exc, "recipe_unreadable"), file.sha256, text)
            continue
        if recipe.sha256.hex() != file.sha256 or recipe.size != file.size:
            text = f"the recipe of file {file.sha256} makes {recipe.sha256.hex()}"
            yield Finding("recipe_unreadable", file.sha256, text)
            continue
        with reg.db.read() as session:
            rows = session.execute(
                select(Tensor.id, Tensor.hash)
                .join(FileTensor, FileTensor.tensor_id == Tensor.id)
                .where(FileTensor.file_id == file.id)
            ).all()
        named = {content for tensor, content in rows if tensor != file.recipe_tensor_id}
        needed = {ref.tensor for ref in recipe.tensors()}
        has_itself = any(tensor == file.recipe_tensor_id for tensor, _ in rows)
        missing = len(needed - named) + (0 if has_itself else 1)
        extra = len(named - needed)
        if (missing or extra) and _is_unchanged(reg, file):
            text = f"file {file.sha256}: rows of {missing} tensors are missing, {extra} too many"
            yield Finding("file_tensors", file.sha256, text)


def check_packs(reg: Registry, cursor: Cursor) -> Findings:
    """Check that each live pack has the BLAKE3 of its row and of its trailer."""
    for pack_id, _ in live_packs(reg, cursor):
        with reg.db.read() as session:
            row = session.get(Pack, pack_id)
        if row is None:
            continue
        try:
            if verify_pack_hash(pack_chunks(reg, pack_id)) == row.hash:
                continue
            code = "pack_hash"
            text = f"pack {pack_id} is whole, but another one than its row says"
        except ObjectNotFound:
            continue  # check_objects reports it if the pack is still live
        except (CodecError, StoreError) as exc:
            code, text = code_of(exc, "pack_hash"), text_of("pack", pack_id, exc)
        yield Finding(code, pack_id, text)


def check_copies(reg: Registry) -> Findings:
    """Check that each second copy has the BLAKE3 of its pack's row."""
    with reg.db.read() as session:
        rows = session.execute(
            select(PackCopy.pack_id, PackCopy.id, PackCopy.size, Pack.hash)
            .join(Pack, Pack.id == PackCopy.pack_id)
            .where(PackCopy.state == "live")
        ).all()
    for pack_id, copy_id, size, digest in rows:
        key = second_copy_key(copy_id)
        try:
            is_whole = reg.store.size(key) == size
            if is_whole and digest is not None and not is_right(reg, key, digest):
                text = f"the second copy of pack {pack_id} has other bytes than the pack had"
                yield Finding("copy_hash", pack_id, text)
        except StoreUnavailable as exc:
            text = f"the second copy of pack {pack_id}: {exc}"
            yield Finding("object_unreadable", pack_id, text)
        except StoreError:
            continue  # check_objects reports it, or the copy was just deleted


def check_tensors(reg: Registry, reader: FileReader, cursor: Cursor) -> Findings:
    """Check that each tensor decodes to its BLAKE3, and that its frames agree with its rows.

    Those that are marked as lost are left out: check_lost reports them.
    """
    for tensor_id, content in _tensors(reg, cursor):
        try:
            found = list(check_tensor(reg, reader, tensor_id, content))
        except (RegistryError, CodecError, StoreError) as exc:
            text = text_of("tensor", content.hex(), exc)
            found = [Finding(code_of(exc, "tensor_unreadable"), content.hex(), text)]
        if found:
            with reg.db.read() as session:
                row = session.get(Tensor, tensor_id)
            if row is not None and row.hash == content:  # not deleted meanwhile
                yield from found


def check_file_bytes(reg: Registry, reader: FileReader, cursor: Cursor) -> Findings:
    """Check that each file, read as a download reads it, has the SHA-256 of its row."""
    for file in _files(reg, cursor):
        if file.state not in ("landed", "ingested"):
            continue
        digest = hashlib.sha256()
        try:
            for piece in reader.stream_file(file, 0, file.size):
                digest.update(piece)
        except (RegistryError, CodecError, StoreError) as exc:
            if _is_unchanged(reg, file):
                text = text_of("file", file.sha256, exc)
                yield Finding(code_of(exc, "file_unreadable"), file.sha256, text)
            continue
        if digest.hexdigest() != file.sha256:
            text = f"file {file.sha256} comes back as {digest.hexdigest()}"
            yield Finding("file_hash", file.sha256, text)


def check_landing_bytes(reg: Registry) -> Findings:
    """Check that each complete upload still has its SHA-256."""
    with reg.db.read() as session:
        rows = session.execute(
            select(Landing.id, Landing.sha256, Landing.size).where(Landing.state == "complete")
        ).all()
    for landing_id, sha256, size in rows:
        try:
            hashes = hashes_of(reg, landing_key(landing_id), size)
        except (Unavailable, StoreUnavailable) as exc:
            yield Finding("object_unreadable", sha256, f"the upload {sha256}: {exc}")
            continue
        except (RegistryError, StoreError):
            continue  # check_objects reports it
        if hashes is not None and hashes.sha256 != sha256:
            text = f"the upload {sha256} now reads as {hashes.sha256}"
            yield Finding("landing_hash", sha256, text)


def check_tensor(reg: Registry, reader: FileReader, tensor_id: int, content: bytes) -> Findings:
    """Check one tensor; RegistryError, CodecError and StoreError if it cannot be read."""
    located = reader.locate([tensor_id])
    tensor = located.get(tensor_id)
    if tensor is None:
        return
    yield from _check_headers(reg, reader, tensor)
    digest = blake3()
    for piece in reader.stream_tensor(located, tensor_id, 0, tensor.size):
        digest.update(piece)
    if digest.digest() != content:
        text = f"tensor {content.hex()} decodes to {digest.hexdigest()}"
        yield Finding("tensor_hash", content.hex(), text)


def _check_headers(reg: Registry, reader: FileReader, tensor: TensorLocation) -> Findings:
    needed: set[bytes] = set()
    for frame in tensor.frames:
        header = reader.frames.open(frame).view.header
        if header.base is not None:
            needed.update(header.base.base_ids())
        is_right = (
            header.tensor == tensor.hash
            and header.size_bytes == frame.size
            and header.tensor_size_bytes == tensor.size
            and BY_ID[header.codec].number == frame.codec
        )
        if not is_right:
            text = f"the frame at {frame.offset} of pack {frame.pack_id} is not what its row says"
            yield Finding("frame_header", tensor.hash.hex(), text)
    with reg.db.read() as session:
        bases = bases_of(session, [tensor.id]).get(tensor.id, set())
        named: set[bytes] = set()
        for batch in batches(bases):
            named.update(session.scalars(select(Tensor.hash).where(Tensor.id.in_(batch))))
    if named != needed:
        text = f"tensor {tensor.hash.hex()}: the bases in its frames are not those in its rows"
        yield Finding("frame_header", tensor.hash.hex(), text)


def _tensors(reg: Registry, cursor: Cursor) -> Iterator[tuple[int, bytes]]:
    last = cursor.begin_after(0)
    while True:
        with reg.db.read() as session:
            page = session.execute(
                select(Tensor.id, Tensor.hash)
                .where(Tensor.id > last, Tensor.lost.is_(None))
                .order_by(Tensor.id)
                .limit(PAGE)
            ).all()
        if not page:
            return
        yield from page
        last = page[-1][0]
        cursor.reached(last)


def _files(reg: Registry, cursor: Cursor) -> Iterator[File]:
    last = cursor.begin_after(0)
    while True:
        with reg.db.read() as session:
            page = session.scalars(
                select(File).where(File.id > last).order_by(File.id).limit(PAGE)
            ).all()
        if not page:
            return
        yield from page
        last = page[-1].id
        cursor.reached(last)


def _is_unchanged(reg: Registry, file: File) -> bool:
    """False if the file was deleted or ingested since its row was read."""
    with reg.db.read() as session:
        row = session.get(File, file.id)
    return (
        row is not None
        and row.sha256 == file.sha256
        and row.recipe_tensor_id == file.recipe_tensor_id
    )


def check_xorb_bytes(reg: Registry) -> Findings:
    """Check that the chunks of each live xorb still have its hash."""
    with reg.db.read() as session:
        rows = session.execute(select(Xorb.id, Xorb.hash).where(Xorb.state == "live")).all()
    for xorb_id, digest in rows:
        with reg.db.read() as session:
            chunks = session.scalar(select(Xorb.chunks).where(Xorb.id == xorb_id))
        try:
            found = root_in_store(reg, xorb_id, XorbIndex(chunks or b""))
        except StoreUnavailable as exc:
            yield Finding("object_unreadable", xorb_id, f"xorb {to_text(digest)}: {exc}")
            continue
        except StoreError:
            continue  # check_objects reports it, or the xorb was just deleted
        if chunks is not None and found != digest:
            text = f"xorb {to_text(digest)} now reads as {to_text(found)}"
            yield Finding("xorb_hash", xorb_id, text)
