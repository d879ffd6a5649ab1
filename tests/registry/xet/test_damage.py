"""A lost or damaged xorb is never used, and a client can send it again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import XetRange, Xorb
from deltahub.registry.errors import HashMismatch, Unavailable
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.storage.base import StoreUnavailable
from deltahub.registry.storage.keys import xorb_key
from deltahub.registry.xet.receive_xorb import has_xorb
from deltahub.registry.xet.sources import UnknownXorb
from support.registry.collecting import count, is_clean
from support.registry.crash_workload import run_jobs
from support.registry.opened import caller, ensure_repository, opened_registry
from support.registry.scrubbing import findings, names, scrubbed
from support.registry.xet import FileOf, TermOf, repository_row, send_shard, send_xorb
from support.registry.xet_uploads import FILE, ONE, TWO, commit_file, epoch, landed, send_all


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    who = caller(reg, "ann")
    ensure_repository(reg, who, "ann/m")
    return who


def test_fsck_finds_what_is_wrong_with_xorbs(reg: Registry, ann: Caller) -> None:
    send_xorb(reg, "ann/m", ONE)
    with reg.db.read() as session:
        xorb_id = session.scalars(select(Xorb.id)).one()
    body = b"".join(ONE.chunks)
    for damaged, code in ((b"?" + body[1:], "xorb_hash"), (body[:-1], "xorb_size")):
        reg.store.put(xorb_key(xorb_id), [damaged])
        assert code in {finding.code for finding in fsck(reg, read_data=True)}
    reg.store.delete(xorb_key(xorb_id))
    assert [finding.code for finding in fsck(reg, read_data=True)] == ["xorb_missing"]


@pytest.mark.parametrize("code", ["xorb_hash", "xorb_size", "xorb_missing"])
def test_scrub_forgets_a_damaged_xorb_so_that_its_client_sends_it_again(
    reg: Registry, ann: Caller, code: str
) -> None:
    send_xorb(reg, "ann/m", ONE)
    assert scrubbed(reg).proved == 1
    before = epoch(reg, "ann/m")
    (stored,) = reg.store.list("xorbs/")
    body = b"".join(ONE.chunks)
    if code == "xorb_missing":
        reg.store.delete(stored.key)
    else:
        reg.store.put(stored.key, [b"?" + body[1:] if code == "xorb_hash" else body[:-1]])
    assert [found for found, _ in scrubbed(reg).found] == [code]
    assert findings(reg) == {("xorb", code): "repaired"}
    assert names(reg) == {"an upload to ann/m"}
    assert epoch(reg, "ann/m") != before
    assert send_xorb(reg, "ann/m", ONE)
    send_shard(reg, ann, "ann/m", [FileOf([TermOf(ONE)])])
    assert is_clean(reg)


def test_a_xorb_whose_object_is_lost_is_taken_anew(reg: Registry, ann: Caller) -> None:
    send_xorb(reg, "ann/m", ONE)
    (lost,) = reg.store.list("xorbs/")
    reg.store.delete(lost.key)
    file = FileOf([TermOf(ONE)])
    with pytest.raises(UnknownXorb, match="start the upload again"):
        send_shard(reg, ann, "ann/m", [file])
    assert send_xorb(reg, "ann/m", ONE)
    send_shard(reg, ann, "ann/m", [file])
    assert is_clean(reg)


def test_an_answer_that_does_not_come_drops_no_xorb(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(key: str, start: int, out: memoryview) -> None:
        raise StoreUnavailable(f"{key}: SlowDown")

    send_xorb(reg, "ann/m", ONE)
    repository = repository_row(reg, "ann/m").id
    monkeypatch.setattr(reg.store, "get_into", away)
    with pytest.raises(StoreUnavailable):
        has_xorb(reg, repository, ONE.hash)
    with pytest.raises((StoreUnavailable, Unavailable)):
        send_shard(reg, ann, "ann/m", [FileOf([TermOf(ONE)])])
    monkeypatch.undo()
    assert has_xorb(reg, repository, ONE.hash)
    send_shard(reg, ann, "ann/m", [FileOf([TermOf(ONE)])])


def damage(reg: Registry, how: str) -> None:
    """Truncate every xorb of the store by a byte, or change a byte."""
    for item in list(reg.store.list("xorbs/")):
        data = bytearray(item.size)
        reg.store.get_into(item.key, 0, memoryview(data))
        data[-5] ^= 1
        reg.store.put(item.key, [bytes(data[:-1] if how == "cut" else data)])


@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_a_xorb_damaged_on_the_disk_is_never_used_and_taken_anew(
    reg: Registry, ann: Caller, how: str
) -> None:
    send_xorb(reg, "ann/m", ONE)
    send_xorb(reg, "ann/m", TWO)
    damage(reg, how)
    with pytest.raises(UnknownXorb, match="start the upload again"):
        send_shard(reg, ann, "ann/m", [FILE])
    assert epoch(reg) == 1
    assert count(reg, XetRange) == 0
    assert send_xorb(reg, "ann/m", ONE)
    assert send_xorb(reg, "ann/m", TWO)
    send_shard(reg, ann, "ann/m", [FILE])
    assert landed(reg, ann, FILE.digest) == FILE.data
    assert is_clean(reg)


@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_a_xorb_sent_again_takes_the_place_of_a_damaged_one(
    reg: Registry, ann: Caller, how: str
) -> None:
    send_xorb(reg, "ann/m", ONE)
    damage(reg, how)
    assert send_xorb(reg, "ann/m", ONE)
    assert not send_xorb(reg, "ann/m", ONE)
    file = FileOf([TermOf(ONE)])
    send_shard(reg, ann, "ann/m", [file])
    assert landed(reg, ann, file.digest) == file.data
    assert is_clean(reg)


def test_chunks_of_a_damaged_xorb_come_from_the_file_that_has_them(
    reg: Registry, ann: Caller
) -> None:
    whole = FileOf([TermOf(ONE), TermOf(TWO)])
    send_all(reg, ann, "ann/m", whole)
    commit_file(reg, ann, "ann/m", whole)
    run_jobs(reg)
    damage(reg, "flipped")
    other = FileOf([TermOf(TWO), TermOf(ONE)])
    assert send_shard(reg, ann, "ann/m", [other]).done == len(other.data)
    assert landed(reg, ann, other.digest) == other.data
    assert epoch(reg) == 0
    # An error that the disk did not cause stays an error of the client.
    with pytest.raises(HashMismatch, match="have SHA-256"):
        send_shard(reg, ann, "ann/m", [replace(FILE, sha256="0" * 64)])
