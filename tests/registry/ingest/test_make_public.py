"""A private repository becomes public: all of it at once, and no data of other private ones."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, select

from deltahub.registry import Caller, Registry
from deltahub.registry.access.repositories import find_repository, load_repository
from deltahub.registry.catalog.commit import AddFile, CopyFile, commit
from deltahub.registry.catalog.entries import list_entries
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.catalog.repositories import create_repository, get_repository, make_private
from deltahub.registry.db.models import (
    Domain,
    File,
    FileTensor,
    Landing,
    Revision,
    Tensor,
    TensorBase,
)
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Conflict, DataLost, Forbidden, RepositoryNotFound
from deltahub.registry.ingest.make_public import make_public
from deltahub.registry.jobs import queue
from support import forked
from support.registry.client_packs import near, weights
from support.registry.collecting import age_everything, collect, count, is_clean
from support.registry.ingested import ingest, push_ingested, read_file, stored_tensors
from support.registry.opened import caller, opened_registry, sha256_of, upload

BASE = weights(20_000, seed=1)


def model(words: bytes) -> bytes:
    place = {"dtype": "BF16", "shape": [100, len(words) // 200], "data_offsets": [0, len(words)]}
    head = json.dumps({"w": place}).encode()
    return len(head).to_bytes(8, "little") + head + words


SECRET, TUNED, NEWER = model(BASE), model(near(BASE, seed=2)), model(near(BASE, seed=3))
FILES = {"model.safetensors": TUNED, "a.txt": b"a", "same.txt": b"a"}


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


@pytest.fixture
def revision(reg: Registry, alice: Caller) -> int:
    """The first revision of alice/m, a fine-tune of alice/secret. Both are private."""
    push_ingested(reg, alice, "alice/secret", {"model.safetensors": SECRET}, private=True)
    found = push_ingested(reg, alice, "alice/m", FILES, private=True, base="alice/secret")
    assert any(tensor.bases for tensor in stored_tensors(reg, found).values())
    return found


def run_jobs(reg: Registry) -> None:
    while True:
        with reg.db.read() as session:
            waiting = list(queue.next_queued(session))
        for job in waiting:
            if job.kind == "ingest":
                ingest(reg, job.payload["revision_id"], job.id)
            with reg.db.write() as session:
                queue.mark_running(session, job.id)
                queue.mark_done(session, job.id, {})
        if not waiting:
            return


def domains_needed(reg: Registry, name: str) -> set[str]:
    """The domains of the repository, its files, their tensors and all bases of these."""
    with reg.db.read() as session:
        repository = find_repository(session, name)
        assert repository is not None
        files = set(
            session.scalars(
                select(Entry.file_id)
                .join(Revision, Revision.id == Entry.revision_id)
                .where(Revision.repository_id == repository.id)
            )
        )
        tensors = set(
            session.scalars(select(FileTensor.tensor_id).where(FileTensor.file_id.in_(files)))
        )
        bases = session.scalars(select(TensorBase.base_id).where(TensorBase.tensor_id.in_(tensors)))
        tensors |= set(bases)
        ids = {repository.domain_id}
        ids |= set(session.scalars(select(File.domain_id).where(File.id.in_(files))))
        ids |= set(session.scalars(select(Tensor.domain_id).where(Tensor.id.in_(tensors))))
        return set(session.scalars(select(Domain.key).where(Domain.id.in_(ids))))


def read_all(reg: Registry, who: Caller | None, name: str, ref: str = "main") -> dict[str, bytes]:
    with reg.db.read() as session:
        found = resolve_revision(session, load_repository(session, who, name), ref)
        paths = [entry.path for entry in list_entries(session, found)]
        row_id = found.id
    return {path: read_file(reg, row_id, path) for path in paths}


def test_every_revision_becomes_public_data(reg: Registry, alice: Caller, revision: int) -> None:
    first = get_repository(reg, alice, "alice/m").head
    assert first is not None
    push_ingested(reg, alice, "alice/m", {"model.safetensors": NEWER}, private=True)
    make_public(reg, FileReader(reg), alice, "alice/m")
    bob = caller(reg, "bob")
    for who in (bob, None):
        # Immediately, before any ingest.
        assert read_all(reg, who, "alice/m", first) == FILES
        assert read_all(reg, who, "alice/m") == FILES | {"model.safetensors": NEWER}
    assert domains_needed(reg, "alice/m") == {"public"}
    assert is_clean(reg)
    run_jobs(reg)
    assert read_all(reg, None, "alice/m", first) == FILES
    assert read_all(reg, None, "alice/m") == FILES | {"model.safetensors": NEWER}
    assert domains_needed(reg, "alice/m") == {"public"}
    # Private data is unchanged, and gc collects what is not needed any more.
    with pytest.raises(RepositoryNotFound):
        get_repository(reg, bob, "alice/secret")
    age_everything(reg, days=30)
    collect(reg)
    assert read_all(reg, alice, "alice/secret") == {"model.safetensors": SECRET}
    assert read_all(reg, None, "alice/m") == FILES | {"model.safetensors": NEWER}
    assert count(reg, Landing) == 0
    assert is_clean(reg)


def test_it_goes_back_and_forth_and_its_files_can_be_named(
    reg: Registry, alice: Caller, revision: int
) -> None:
    for _ in range(2):
        make_public(reg, FileReader(reg), alice, "alice/m")
        make_public(reg, FileReader(reg), alice, "alice/m")  # it is public already
        copy = CopyFile("copy.safetensors", sha256_of(TUNED))
        commit(reg, alice, "alice/m", "main", [copy])
        assert read_all(reg, None, "alice/m") == FILES | {"copy.safetensors": TUNED}
        make_private(reg, alice, "alice/m")
        with pytest.raises(RepositoryNotFound):
            get_repository(reg, None, "alice/m")
        run_jobs(reg)
        assert is_clean(reg)


def test_what_is_public_already_is_not_landed_again(
    reg: Registry, alice: Caller, revision: int
) -> None:
    bob = caller(reg, "bob")
    push_ingested(reg, bob, "bob/same", FILES)
    before = count(reg, Landing), count(reg, Job)
    make_public(reg, FileReader(reg), alice, "alice/m")
    assert (count(reg, Landing), count(reg, Job)) == before
    assert read_all(reg, None, "alice/m") == FILES


def test_a_push_that_comes_meanwhile_becomes_public_too(
    reg: Registry, alice: Caller, revision: int
) -> None:
    class Interrupted(FileReader):
        def stream_file(self, file: File, start: int, end: int) -> Iterator[memoryview]:
            if file.sha256 == sha256_of(TUNED):
                push_ingested(reg, alice, "alice/m", {"late.safetensors": NEWER}, private=True)
            yield from super().stream_file(file, start, end)

    make_public(reg, Interrupted(reg), alice, "alice/m")
    assert read_all(reg, None, "alice/m") == FILES | {"late.safetensors": NEWER}
    assert domains_needed(reg, "alice/m") == {"public"}


def test_it_stays_private_where_a_file_cannot_be_read(
    reg: Registry, alice: Caller, revision: int
) -> None:
    class Broken(FileReader):
        def stream_file(self, file: File, start: int, end: int) -> Iterator[memoryview]:
            raise DataLost("a disk is damaged")

    with pytest.raises(DataLost):
        make_public(reg, Broken(reg), alice, "alice/m")
    assert get_repository(reg, alice, "alice/m").is_private
    with pytest.raises(RepositoryNotFound):
        get_repository(reg, None, "alice/m")


def test_only_who_administers_it_may(reg: Registry, alice: Caller, revision: int) -> None:
    with pytest.raises(RepositoryNotFound):
        make_public(reg, FileReader(reg), caller(reg, "bob"), "alice/m")
    with pytest.raises(Forbidden):
        make_public(reg, FileReader(reg), caller(reg, "alice", scope="read"), "alice/m")


def test_it_waits_for_a_push_that_is_being_proved(
    reg: Registry, alice: Caller, revision: int
) -> None:
    with reg.db.write() as session:
        repository = load_repository(session, alice, "alice/m")
        queue.enqueue(session, "prove_recipe", {"landing_id": "1" * 32}, repository.id)
    with pytest.raises(Conflict, match="being verified"):
        make_public(reg, FileReader(reg), alice, "alice/m")
    assert get_repository(reg, alice, "alice/m").is_private


DIES = """
import sys
from pathlib import Path
from deltahub.registry import Registry, Settings
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.ingest.make_public import make_public
from deltahub.registry.catalog.refs import resolve_revision
from support.registry.opened import caller
with Registry.open(Settings(data_dir=Path(sys.argv[1]))) as reg:
    make_public(reg, FileReader(reg), caller(reg, "alice"), "alice/m")
"""


@pytest.mark.parametrize(
    ("failpoint", "is_private"),
    [
        ("landing.complete.after_store", True),
        ("publication.before_commit", True),
        ("publication.after_switch", False),
    ],
)
def test_a_kill_leaves_it_private_or_public(
    tmp_path: Path, failpoint: str, is_private: bool
) -> None:
    with opened_registry(tmp_path) as reg:
        alice = caller(reg, "alice")
        push_ingested(reg, alice, "alice/m", FILES, private=True)
    killed = forked.run(
        "-c", DIES, tmp_path / "data", environment={"DELTAHUB_FAILPOINT": failpoint}
    )
    assert killed.returncode == -9
    with opened_registry(tmp_path) as reg:
        assert is_clean(reg)
        assert get_repository(reg, alice, "alice/m").is_private == is_private
        assert read_all(reg, alice, "alice/m") == FILES
        make_public(reg, FileReader(reg), alice, "alice/m")
        assert read_all(reg, None, "alice/m") == FILES


@pytest.mark.parametrize("what", ["commit", "publication"])
def test_many_files_take_few_statements_while_others_wait(
    reg: Registry, alice: Caller, what: str
) -> None:
    files = {f"{n}.txt": b"%d" % n for n in range(200)}
    operations = [
        AddFile(path, upload(reg, alice, data), len(data)) for path, data in files.items()
    ]
    create_repository(reg, alice, "alice/m", private=True)
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    if what == "publication":
        commit(reg, alice, "alice/m", "main", operations, "many")
    event.listen(Engine, "before_cursor_execute", note)
    try:
        if what == "commit":
            commit(reg, alice, "alice/m", "main", operations, "many")
        else:
            make_public(reg, FileReader(reg), alice, "alice/m")
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert len(asked) < 50
    with reg.db.read() as session:
        repository = load_repository(session, alice, "alice/m")
        listed = list_entries(session, resolve_revision(session, repository, "main"))
        assert {entry.file.sha256 for entry in listed} == {add.sha256 for add in operations}
        assert {entry.file.domain_id for entry in listed} == {repository.domain_id}
