"""Xet uploads are verified, visible only to permitted callers, and deleted after expiry."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import select, update

from deltahub.registry import Caller, Registry, failpoints
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import Landing, XetRange, Xorb, utc_now
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import (
    Forbidden,
    HashMismatch,
    InvalidRequest,
    LimitExceeded,
    RegistryError,
    RepositoryNotFound,
    SizeMismatch,
    UploadNotFound,
)
from deltahub.registry.ingest.make_public import make_public
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.xet.epochs import place_of, repository_at
from deltahub.registry.xet.receive_xorb import receive_xorb
from deltahub.registry.xet.sources import UnknownXorb
from support import forked
from support.registry.collecting import age_everything, collect, count, is_clean, n_objects
from support.registry.crash_workload import run_jobs
from support.registry.opened import caller, ensure_repository, opened_registry, push, sha256_of
from support.registry.xet import FileOf, TermOf, XorbOf, repository_row, send_shard, send_xorb
from support.registry.xet_uploads import (
    FILE,
    ONE,
    TWO,
    commit_file,
    epoch,
    landed,
    let_xorbs_expire,
    send_all,
)

ZEROS = XorbOf([bytes(128 << 10)] * 513, scheme=1)  # one chunk more than a xorb may have


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    who = caller(reg, "ann")
    ensure_repository(reg, who, "ann/m")
    return who


def test_a_shard_lands_its_files_and_they_are_committed_like_any_upload(
    reg: Registry, ann: Caller
) -> None:
    assert send_xorb(reg, "ann/m", ONE)
    assert send_xorb(reg, "ann/m", TWO)
    other = FileOf([TermOf(TWO)])
    progress = send_shard(reg, ann, "ann/m", [FILE, other])
    assert progress.done == progress.total == len(FILE.data) + len(other.data)
    for file in (FILE, other):
        assert landed(reg, ann, sha256_of(file.data)) == file.data
        commit_file(reg, ann, "ann/m", file, f"{file.digest}.bin")
    run_jobs(reg)
    assert is_clean(reg)


def test_a_xorb_sent_again_is_kept_for_longer_and_stored_once(reg: Registry, ann: Caller) -> None:
    assert send_xorb(reg, "ann/m", ONE)
    soon = utc_now() + timedelta(seconds=5)
    with reg.db.write() as session:
        session.execute(update(Xorb).values(expires_at=soon))
    assert not send_xorb(reg, "ann/m", ONE)
    with reg.db.read() as session:
        assert session.scalars(select(Xorb.expires_at)).one() > soon
    assert n_objects(reg) == 1


def test_a_xorb_of_another_hash_leaves_nothing(reg: Registry, ann: Caller) -> None:
    with pytest.raises(HashMismatch, match=f"{ONE.name}, not of"):
        receive_xorb(reg, ann, repository_row(reg, "ann/m").id, TWO.hash, [ONE.body])
    with pytest.raises(LimitExceeded, match="more than"):
        receive_xorb(reg, ann, repository_row(reg, "ann/m").id, TWO.hash, [ZEROS.body])
    assert count(reg, Xorb) == n_objects(reg) == 0
    assert list(reg.scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "error", "sentence"),
    [
        (replace(FILE, hash=bytes(32)), HashMismatch, "not those of file 0000"),
        (replace(FILE, sha256="0" * 64), HashMismatch, "have SHA-256"),
        (replace(FILE, proofs=[bytes(48)] * 3), HashMismatch, "verification hash of chunks 0"),
        (replace(FILE, proofs=[]), HashMismatch, "is missing or wrong"),
        (replace(FILE, is_named=False), InvalidRequest, "does not say the SHA-256"),
        (
            FileOf([TermOf(XorbOf([*TWO.chunks, b"more"]))]),
            UploadNotFound,
            "start the upload again",
        ),
    ],
)
def test_a_shard_that_does_not_tell_the_truth_lands_nothing(
    reg: Registry, ann: Caller, file: FileOf, error: type[RegistryError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        send_all(reg, ann, "ann/m", file)
    assert count(reg, XetRange) == 0
    with reg.db.read() as session:
        assert set(session.scalars(select(Landing.state))) <= {"receiving"}


def test_terms_beyond_their_xorb_or_of_another_size_are_refused(reg: Registry, ann: Caller) -> None:
    class Beyond(TermOf):
        def record(self) -> bytes:
            return super().record()[:44] + (99).to_bytes(4, "little")

    class Smaller(TermOf):
        def record(self) -> bytes:
            return super().record()[:36] + (9).to_bytes(4, "little") + super().record()[40:]

    with pytest.raises(InvalidRequest, match=r"chunks 0 to 99 are named of xorb .* which has 9"):
        send_all(reg, ann, "ann/m", FileOf([Beyond(ONE)]))
    with pytest.raises(SizeMismatch, match=r"says 9 bytes .* which have 90000"):
        send_all(reg, ann, "ann/m", FileOf([Smaller(ONE)]))


def test_chunks_that_repeat_too_often_are_refused(tmp_path: Path) -> None:
    with opened_registry(tmp_path, max_decoded_bytes=100) as reg:
        who = caller(reg, "ann")
        ensure_repository(reg, who, "ann/m")
        zeros = XorbOf([bytes(128 << 10)] * 512, scheme=1)
        send_xorb(reg, "ann/m", zeros)
        with pytest.raises(LimitExceeded, match="repeat too often"):
            send_shard(reg, who, "ann/m", [FileOf([TermOf(zeros)] * 2)])


def test_nobody_uses_the_xorbs_of_another_repository(reg: Registry, ann: Caller) -> None:
    send_xorb(reg, "ann/m", ONE)
    send_xorb(reg, "ann/m", TWO)
    bob = caller(reg, "bob")
    ensure_repository(reg, bob, "bob/m")
    with pytest.raises(UnknownXorb) as foreign:
        send_shard(reg, bob, "bob/m", [FILE])
    with pytest.raises(UnknownXorb) as absent:
        send_shard(reg, bob, "bob/m", [FileOf([TermOf(XorbOf([b"never sent"]))])])
    text = str(absent.value).replace(XorbOf([b"never sent"]).name, ONE.name)
    assert str(foreign.value) == text
    with pytest.raises(Forbidden):
        send_shard(reg, bob, "ann/m", [FILE])


def test_after_unknown_chunks_clients_of_the_repository_begin_anew(
    reg: Registry, ann: Caller
) -> None:
    ensure_repository(reg, ann, "ann/other")
    with pytest.raises(UnknownXorb, match=rf"{ONE.name}.*start the upload again.*epoch"):
        send_shard(reg, ann, "ann/m", [FILE])
    assert (epoch(reg), epoch(reg, "ann/other")) == (1, 0)


def test_the_operator_makes_all_clients_begin_anew(tmp_path: Path) -> None:
    with opened_registry(tmp_path, xet_epoch=7) as reg:
        ensure_repository(reg, caller(reg, "ann"), "ann/m")
        assert epoch(reg) == 7


def test_chunks_come_from_the_stored_file_once_the_xorbs_are_gone(
    reg: Registry, ann: Caller
) -> None:
    send_all(reg, ann, "ann/m", FILE, FileOf([TermOf(TWO)]))
    commit_file(reg, ann, "ann/m", FILE)
    run_jobs(reg)
    age_everything(reg, 3)
    let_xorbs_expire(reg)
    assert epoch(reg) == 1  # two chunks of TWO were in a file that was never committed
    changed = FileOf([TermOf(TWO, 3, 6), TermOf(ONE, 1, 8), TermOf(TWO, 2, 3)])
    send_shard(reg, ann, "ann/m", [FILE, changed])
    assert landed(reg, ann, changed.digest) == changed.data
    with pytest.raises(UnknownXorb):
        send_shard(reg, ann, "ann/m", [FileOf([TermOf(TWO)])])
    # A file made of chunks of the first file does not depend on that file.
    commit_file(reg, ann, "ann/m", changed, "b.bin")
    run_jobs(reg)
    assert is_clean(reg)


def test_xorbs_whose_chunks_are_all_in_files_are_not_forgotten(reg: Registry, ann: Caller) -> None:
    whole = FileOf([TermOf(ONE), TermOf(TWO)])
    send_all(reg, ann, "ann/m", whole)
    commit_file(reg, ann, "ann/m", whole)
    run_jobs(reg)
    let_xorbs_expire(reg)
    assert epoch(reg) == 0
    send_shard(reg, ann, "ann/m", [FileOf([TermOf(TWO), TermOf(ONE)])])


def test_the_same_file_again_costs_no_second_landing(reg: Registry, ann: Caller) -> None:
    send_all(reg, ann, "ann/m", FILE)
    commit_file(reg, ann, "ann/m", FILE)
    run_jobs(reg)
    age_everything(reg, 3)
    let_xorbs_expire(reg)
    assert send_shard(reg, ann, "ann/m", [FILE]).done == len(FILE.data)
    assert count(reg, Landing) == 0
    commit_file(reg, ann, "ann/m", FILE, "copy.bin")
    assert is_clean(reg)


def test_a_file_that_came_another_way_is_mapped_without_landing_again(
    reg: Registry, ann: Caller
) -> None:
    noise = Random(2).randbytes(10_000)
    push(reg, ann, "ann/m", {"a.bin": FILE.data, "b.bin": noise})
    run_jobs(reg)
    age_everything(reg, 3)
    collect(reg)
    send_all(reg, ann, "ann/m", FILE)
    assert count(reg, Landing) == 0
    let_xorbs_expire(reg)
    other = FileOf([TermOf(ONE, 4, 5)])
    send_shard(reg, ann, "ann/m", [other])
    assert landed(reg, ann, other.digest) == other.data
    # Terms that were not verified against the known file do not enter the chunk map.
    wrong = FileOf([TermOf(ONE, 0, 1)], sha256=sha256_of(noise))
    with pytest.raises(HashMismatch, match="have SHA-256"):
        send_shard(reg, ann, "ann/m", [wrong])


@pytest.mark.parametrize("is_private", [False, True])
def test_chunks_of_private_files_are_absent_for_others(reg: Registry, is_private: bool) -> None:
    ann, bob = caller(reg, "ann"), caller(reg, "bob")
    ensure_repository(reg, ann, "ann/secret", private=True)
    ensure_repository(reg, bob, "bob/m", private=is_private)
    ensure_repository(reg, ann, "ann/public")
    send_all(reg, ann, "ann/secret", FILE)
    commit_file(reg, ann, "ann/secret", FILE)
    run_jobs(reg)
    let_xorbs_expire(reg)
    part = FileOf([TermOf(ONE, 0, 2)])
    with pytest.raises(UnknownXorb):
        send_shard(reg, bob, "bob/m", [part])
    # The owner cannot publish private data by naming its hash.
    with pytest.raises(UnknownXorb):
        send_shard(reg, ann, "ann/public", [part])
    send_shard(reg, ann, "ann/secret", [part])


def test_nobody_learns_what_lies_beside_a_public_file_in_a_private_xorb(
    reg: Registry, ann: Caller
) -> None:
    bob = caller(reg, "bob")
    ensure_repository(reg, bob, "bob/m")
    ensure_repository(reg, ann, "ann/secret", private=True)
    mixed = XorbOf([*ONE.chunks, b"the password is 1234"])
    known = FileOf([TermOf(mixed, 0, len(ONE.chunks))])
    send_xorb(reg, "ann/secret", mixed)
    send_shard(reg, ann, "ann/secret", [known])
    commit_file(reg, ann, "ann/secret", known)
    send_all(reg, ann, "ann/m", FileOf([TermOf(ONE)]))
    commit_file(reg, ann, "ann/m", known)
    run_jobs(reg)
    let_xorbs_expire(reg)
    # Bob can read the file. He can compute the hash of a xorb of it and of guessed chunks.
    with pytest.raises(UnknownXorb):
        send_shard(reg, bob, "bob/m", [FileOf([TermOf(mixed, 0, 2)])])
    send_shard(reg, bob, "bob/m", [FileOf([TermOf(ONE, 0, 2)])])
    send_shard(reg, ann, "ann/secret", [FileOf([TermOf(mixed, 0, 2)])])


def test_a_model_made_public_is_sent_whole_once_more(reg: Registry, ann: Caller) -> None:
    ensure_repository(reg, ann, "ann/secret", private=True)
    send_all(reg, ann, "ann/secret", FILE)
    commit_file(reg, ann, "ann/secret", FILE)
    run_jobs(reg)
    before = epoch(reg, "ann/secret")
    make_public(reg, FileReader(reg), ann, "ann/secret")
    assert epoch(reg, "ann/secret") == before + 1
    let_xorbs_expire(reg)
    with pytest.raises(UnknownXorb):
        send_shard(reg, ann, "ann/secret", [FileOf([TermOf(ONE)])])


def test_chunks_of_public_files_may_be_used_by_everybody(reg: Registry, ann: Caller) -> None:
    send_all(reg, ann, "ann/m", FILE)
    commit_file(reg, ann, "ann/m", FILE)
    run_jobs(reg)
    bob = caller(reg, "bob")
    ensure_repository(reg, bob, "bob/m", private=True)
    part = FileOf([TermOf(ONE, 0, 2)])
    send_shard(reg, bob, "bob/m", [part])
    assert landed(reg, bob, part.digest) == part.data


def test_xorbs_and_the_map_go_with_what_they_are_of(reg: Registry, ann: Caller) -> None:
    send_all(reg, ann, "ann/m", FILE)
    commit_file(reg, ann, "ann/m", FILE)
    assert plan_gc(reg, lease_s=0, grace_s=0).xorbs == ()
    delete_repository(reg, ann, "ann/m")
    plan = plan_gc(reg, lease_s=0, grace_s=0)
    assert sum(item.size_bytes for item in plan.xorbs) == 90_000 + 135_000
    assert is_clean(reg)
    age_everything(reg, 3)
    collect(reg)
    collect(reg)
    assert count(reg, Xorb) == count(reg, XetRange) == n_objects(reg) == 0


def test_what_waits_for_its_expiry_is_said(reg: Registry, ann: Caller) -> None:
    send_xorb(reg, "ann/m", ONE)
    (waiting,) = plan_gc(reg).waiting
    assert (waiting.what, waiting.size_bytes) == ("xorbs of uploads", 90_000)


def test_a_repository_that_takes_the_row_of_another_is_not_taken_for_it(
    reg: Registry, ann: Caller
) -> None:
    before = repository_row(reg, "ann/m")
    delete_repository(reg, ann, "ann/m")
    ensure_repository(reg, ann, "ann/m")
    after = repository_row(reg, "ann/m")
    assert before.id == after.id
    with reg.db.read() as session:
        assert repository_at(session, ann, place_of(after), "write").id == after.id
        for place in (place_of(before), "r1", "m", f"r{10**17}-0", "r1-" + "f" * 17):
            with pytest.raises(RepositoryNotFound):
                repository_at(session, ann, place, "write")


CRASH = """
import sys
from pathlib import Path
from deltahub.registry import Registry, Settings
from support.registry.collecting import collect
from support.registry.opened import caller
from support.registry.xet import FileOf, TermOf, XorbOf, send_shard, send_xorb
xorb = XorbOf([b"some", b"chunks"])
with Registry.open(Settings(data_dir=Path(sys.argv[1]), upload_ttl_s=5)) as reg:
    send_xorb(reg, "ann/m", xorb)
    send_shard(reg, caller(reg, "ann"), "ann/m", [FileOf([TermOf(xorb)])])
with Registry.open(Settings(data_dir=Path(sys.argv[1]), upload_ttl_s=0)) as reg:
    send_xorb(reg, "ann/m", xorb)
    collect(reg)
"""


@pytest.mark.parametrize("name", [name for name in failpoints.ALL if "x" in name.split(".")[0]
                                  or "xorb" in name])  # fmt: skip
def test_a_kill_at_any_step_leaves_nothing_that_a_collection_does_not_find(
    tmp_path: Path, name: str
) -> None:
    with opened_registry(tmp_path) as reg:
        ensure_repository(reg, caller(reg, "ann"), "ann/m")
    killed = forked.run("-c", CRASH, tmp_path / "data", environment={"DELTAHUB_FAILPOINT": name})
    assert killed.returncode == -9
    with opened_registry(tmp_path) as reg:
        assert is_clean(reg)
        ann = caller(reg, "ann")
        send_all(reg, ann, "ann/m", FILE)
        assert landed(reg, ann, FILE.digest) == FILE.data
        let_xorbs_expire(reg)
        assert is_clean(reg)
        assert [item.key for item in reg.store.list("xorbs/")] == []


def test_a_file_of_tiny_chunks_and_overlapping_terms_does_not_fill_the_chunk_map(
    reg: Registry, ann: Caller
) -> None:
    """A chunk takes 36 bytes, so each term of all 8192 chunks of a xorb would take 0.3 MB."""
    tiny = XorbOf([bytes([n]) for n in range(200)])
    file = FileOf([TermOf(tiny, 0, end) for end in range(1, 201)])
    send_xorb(reg, "ann/m", tiny)
    send_shard(reg, ann, "ann/m", [file])
    commit_file(reg, ann, "ann/m", file)
    with reg.db.read() as session:
        n_bytes = sum(map(len, session.scalars(select(XetRange.chunks))))
    assert 0 < n_bytes <= len(file.data) / 100
