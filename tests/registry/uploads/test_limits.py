"""Uploads of one user that no commit uses are bounded, and the user can drop them."""

from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, update

from deltahub.registry import Caller, Registry
from deltahub.registry.access import tokens
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.db.models import Landing, Xorb, utc_now
from deltahub.registry.errors import (
    Conflict,
    Forbidden,
    LimitExceeded,
    StorageFull,
    Unauthorized,
    UploadNotFound,
)
from deltahub.registry.storage.disk import Disk
from deltahub.registry.uploads.discard import drop_upload
from deltahub.registry.uploads.landing import begin, receive, status
from deltahub.registry.uploads.preflight import check_files, check_sizes
from deltahub.registry.uploads.small_files import SmallFiles
from support.registry.collecting import count, n_objects
from support.registry.opened import (
    caller,
    ensure_repository,
    opened_registry,
    push,
    sha256_of,
    upload,
)
from support.registry.xet import XorbOf, send_xorb

TIB = 1 << 40


class Roomy(Disk):
    """A disk that says how much room it has."""

    free = 1 << 60

    def free_bytes(self, path: Path) -> int:
        return self.free


@pytest.fixture
def disk() -> Roomy:
    return Roomy()


@pytest.fixture
def reg(tmp_path: Path, disk: Roomy) -> Iterator[Registry]:
    with opened_registry(
        tmp_path, disk, max_user_uploads=4, max_user_upload_bytes=3 * TIB
    ) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def name_of(number: int) -> str:
    return sha256(b"%d" % number).hexdigest()


def test_announced_bytes_are_bounded_and_the_refusal_says_how_to_go_on(
    reg: Registry, ann: Caller
) -> None:
    for number in range(3):
        begin(reg, ann, name_of(number), TIB)
    with pytest.raises(LimitExceeded) as refused:
        begin(reg, ann, name_of(3), TIB)
    text = str(refused.value)
    for part in (
        "4 uploads and 3.3 TB that no commit uses",
        "you have 3 (3.3 TB), and announce 1 (1.1 TB)",
        "commit them",
        "DELETE /v1/uploads/",
    ):
        assert part in text
    assert f"expires at {utc_now() + timedelta(days=1):%Y-%m-%d}" in text
    assert count(reg, Landing) == 3
    # Another user has the whole limit, and an announced upload goes on.
    begin(reg, caller(reg, "bob"), name_of(3), TIB)
    receive(reg, ann, name_of(0), TIB, 0, [b"some"])
    with pytest.raises(LimitExceeded):
        begin(reg, ann, name_of(4), TIB)


def test_the_number_of_uploads_is_bounded_however_they_come(reg: Registry, ann: Caller) -> None:
    upload(reg, ann, b"0")
    files = SmallFiles(reg, ann)
    for number in range(1, 4):
        files.add(b"%d" % number)
    files.flush()
    with pytest.raises(LimitExceeded, match=r"you have 4 \(4 B\)"):
        upload(reg, ann, b"4")
    files.add(b"5")
    with pytest.raises(LimitExceeded):
        files.flush()
    # What is here already needs no place.
    files.add(b"1")
    files.flush()
    upload(reg, ann, b"0")


def test_what_is_committed_dropped_or_expired_leaves_its_place(reg: Registry, ann: Caller) -> None:
    def fill() -> str:
        for number in range(100):
            try:
                begin(reg, ann, name_of(number), 1)
            except LimitExceeded:
                return name_of(number)
        raise AssertionError("no limit")

    push(reg, ann, "ann/m", {"a": b"1", "b": b"2", "c": b"3", "d": b"4"})
    push(reg, ann, "ann/m", {"e": b"5", "f": b"6", "g": b"7", "h": b"8"})
    last = fill()
    drop_upload(reg, ann, name_of(0))
    begin(reg, ann, last, 1)
    with reg.db.write() as session:
        session.execute(update(Landing).values(expires_at=utc_now() - timedelta(seconds=1)))
    # As another process, which has not just counted.
    with opened_registry(reg.data_dir.parent, max_user_uploads=4) as other:
        for number in range(50, 54):
            begin(other, ann, name_of(number), 1)


def test_a_larger_size_of_an_announced_upload_counts(reg: Registry, ann: Caller) -> None:
    begin(reg, ann, name_of(0), 1)
    with pytest.raises(LimitExceeded):
        begin(reg, ann, name_of(0), 4 * TIB // 4 * 4)
    assert status(reg, ann, name_of(0)).size == 1


def test_the_bound_is_counted_once_and_not_for_every_upload(reg: Registry, ann: Caller) -> None:
    counts = 0

    def look(connection: Connection, cursor: object, statement: str, *more: object) -> None:
        nonlocal counts
        counts += "count(*)" in statement

    event.listen(reg.db.read_engine, "before_cursor_execute", look)
    for number in range(4):
        begin(reg, ann, name_of(number), 1)
    assert counts == 1


def test_xorbs_are_bounded_apart_from_uploads(reg: Registry, ann: Caller) -> None:
    ensure_repository(reg, ann, "ann/m")
    ensure_repository(reg, ann, "ann/n")
    for number in range(4):
        upload(reg, ann, b"%d" % number)
        send_xorb(reg, ("ann/m", "ann/n")[number % 2], XorbOf([b"chunk %d" % number]), ann)
    with pytest.raises(LimitExceeded, match=r"4 \(28 B\): send the rest later; the first exp"):
        send_xorb(reg, "ann/m", XorbOf([b"one more"]), ann)
    assert count(reg, Xorb) == 4
    assert list(reg.scratch.iterdir()) == []
    assert not send_xorb(reg, "ann/m", XorbOf([b"chunk 0"]), ann)


def test_an_upload_without_room_is_refused_before_it_is_sent(
    reg: Registry, ann: Caller, disk: Roomy
) -> None:
    disk.free = 1000
    with pytest.raises(StorageFull, match=r"room for 1.0 kB, and this upload has 2.0 kB"):
        receive(reg, ann, name_of(0), 2000, 0, iter(()))
    assert count(reg, Landing) == 0
    # Space that a cache gives back counts.
    reg.reclaimable_bytes = lambda: 1000
    begin(reg, ann, name_of(0), 2000)


def test_a_client_learns_before_an_upload_that_there_is_no_room_for_it(
    reg: Registry, ann: Caller, disk: Roomy
) -> None:
    known = b"known" * 100
    push(reg, ann, "ann/m", {"a": known})
    sent = upload(reg, ann, b"sent" * 100)
    disk.free = 300
    with pytest.raises(StorageFull):
        check_files(reg, ann, {name_of(0): 200, name_of(1): 200})
    with pytest.raises(StorageFull):
        check_sizes(reg, ann, "ann/m", [200, 200])
    check_files(reg, ann, {name_of(0): 200, sent: 400})
    # Such files may be those that are here.
    check_sizes(reg, ann, "ann/m", [len(known), 400, 200])
    disk.free = 1 << 60
    with pytest.raises(LimitExceeded):
        check_sizes(reg, ann, "ann/m", [1, 2, 3, 5])
    check_sizes(reg, ann, "ann/m", [1, 2, 3])
    assert count(reg, Landing) == 2


def test_a_dropped_upload_leaves_nothing(reg: Registry, ann: Caller) -> None:
    complete = upload(reg, ann, b"complete")
    receive(reg, ann, name_of(0), 100, 0, [b"begun"])
    for sha256_hex in (complete, name_of(0)):
        drop_upload(reg, ann, sha256_hex)
        with pytest.raises(UploadNotFound):
            status(reg, ann, sha256_hex)
        with pytest.raises(UploadNotFound):
            drop_upload(reg, ann, sha256_hex)
    assert count(reg, Landing) == n_objects(reg) == 0
    assert list(reg.spool.list()) == []
    assert upload(reg, ann, b"complete") == complete


def test_an_upload_that_is_used_or_being_sent_is_not_dropped(reg: Registry, ann: Caller) -> None:
    push(reg, ann, "ann/m", {"a": b"used"})
    with pytest.raises(Conflict, match="file of a commit"):
        drop_upload(reg, ann, sha256_of(b"used"))
    begun = begin(reg, ann, name_of(0), 100)
    with reg.spool.open(begun.id, 100), pytest.raises(Conflict, match="on another connection"):
        drop_upload(reg, ann, name_of(0))
    commit(reg, ann, "ann/m", "main", [AddFile("b", sha256_of(b"used"), 4)])


def test_only_its_sender_drops_an_upload(reg: Registry, ann: Caller) -> None:
    sent = upload(reg, ann, b"mine")
    with pytest.raises(UploadNotFound):
        drop_upload(reg, caller(reg, "bob"), sent)
    with pytest.raises(Unauthorized):
        drop_upload(reg, None, sent)
    reader = tokens.authenticate(reg, tokens.create_token(reg, "ann", "read"))
    with pytest.raises(Forbidden):
        drop_upload(reg, reader, sent)
    assert status(reg, ann, sent).is_complete
