"""A client's recipe is accepted only after the hub has rebuilt the file by it."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, func, select, update

from deltahub.codecs.files.recipe import Recipe, TensorRef
from deltahub.codecs.ids import tensor_id
from deltahub.registry import Caller, Registry, failpoints
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.db.models import File, Hold, Landing, utc_now
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import (
    Forbidden,
    HashMismatch,
    InvalidFrame,
    LimitExceeded,
    TensorNotFound,
    UploadNotFound,
)
from deltahub.registry.ingest.verify_recipe import verify_recipe
from deltahub.registry.jobs import queue
from deltahub.registry.uploads.recipes import submit_recipe
from support.registry.client_packs import file_of, frames_of, near, send_pack, weights
from support.registry.collecting import collect
from support.registry.ingested import push_ingested
from support.registry.opened import caller, ensure_repository, opened_registry, sha256_of, upload

BASE = weights(40_000)
TUNED = near(BASE)


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def count(reg: Registry, model: type) -> int:
    with reg.db.read() as session:
        return session.scalar(select(func.count()).select_from(model)) or 0


def run_job(reg: Registry, job_id: str) -> None:
    with reg.db.write() as session:
        assert queue.mark_running(session, job_id)
        payload = session.get_one(Job, job_id).payload
    verify_recipe(reg, FileReader(reg), job_id, payload)


class TestRecipes:
    @pytest.fixture(autouse=True)
    def _repository(self, reg: Registry, ann: Caller) -> None:
        push_ingested(reg, ann, "ann/base", {"a.bin": BASE})
        ensure_repository(reg, ann, "ann/m")

    def test_a_job_that_died_when_its_upload_was_deleted_ends_well_when_it_is_run_again(
        self, reg: Registry, ann: Caller, tmp_path: Path
    ) -> None:
        data, recipe = file_of([TUNED, BASE])
        send_pack(reg, ann, "ann/m", frames_of(TUNED, BASE))
        job_id = submit_recipe(reg, ann, "ann/m", recipe).job_id
        assert job_id is not None
        child = os.fork()
        if child == 0:
            failpoints._trigger = failpoints._Trigger("landing.delete.before_rows")
            with opened_registry(tmp_path) as own:
                run_job(own, job_id)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        run_job_again(reg, job_id)
        commit_file(reg, ann, "ann/m", data)

    def test_a_proved_recipe_makes_a_file_that_its_sender_can_commit(
        self, reg: Registry, ann: Caller
    ) -> None:
        data, recipe = file_of([TUNED, BASE])
        send_pack(reg, ann, "ann/m", frames_of(TUNED, BASE))
        submitted = submit_recipe(reg, ann, "ann/m", recipe)
        assert submitted.state == "proving"
        assert submitted.job_id is not None
        with pytest.raises(UploadNotFound):
            commit_file(reg, ann, "ann/m", data)
        run_job(reg, submitted.job_id)
        assert submit_recipe(reg, ann, "ann/m", recipe).state == "ready"
        commit_file(reg, ann, "ann/m", data)
        with reg.db.read() as session:
            file = session.scalars(select(File).where(File.sha256 == sha256_of(data))).one()
        assert file.git_blob_id is not None
        assert b"".join(FileReader(reg).stream_file(file, 0, file.size)) == data
        assert count(reg, Landing) == 0
        run_job_again(reg, submitted.job_id)

    def test_a_file_that_is_said_to_be_ready_is_held_anew(self, reg: Registry, ann: Caller) -> None:
        data, recipe = file_of([TUNED, BASE])
        send_pack(reg, ann, "ann/m", frames_of(TUNED, BASE))
        job_id = submit_recipe(reg, ann, "ann/m", recipe).job_id
        assert job_id is not None
        run_job(reg, job_id)
        with reg.db.write() as session:
            queue.mark_done(session, job_id, {})
            nearly = utc_now() + timedelta(seconds=5)
            session.execute(update(Hold).values(expires_at=nearly))
            session.execute(update(File).values(ingested_at=utc_now() - timedelta(days=9)))
        assert submit_recipe(reg, ann, "ann/m", recipe).state == "ready"
        with reg.db.write() as session:
            expired = utc_now() - timedelta(seconds=5)
            session.execute(
                update(Hold).where(Hold.expires_at <= nearly).values(expires_at=expired)
            )
        collect(reg)
        commit_file(reg, ann, "ann/m", data)

    def test_a_recipe_that_lies_about_its_file_makes_none(self, reg: Registry, ann: Caller) -> None:
        _, recipe = file_of([BASE])
        honest = Recipe.from_bytes(recipe)
        lie = Recipe(honest.size, bytes.fromhex(sha256_of(b"x")), "opaque", honest.segments)
        submitted = submit_recipe(reg, ann, "ann/m", lie.to_bytes())
        assert submitted.job_id is not None
        before = count(reg, File)
        with pytest.raises(HashMismatch):
            run_job(reg, submitted.job_id)
        assert count(reg, File) == before
        assert count(reg, Landing) == 0
        with reg.db.read() as session:
            assert not session.scalars(select(Hold).where(Hold.job_id.is_not(None))).all()

    def test_absent_unreadable_and_wrongly_sized_tensors_are_refused_alike(
        self, reg: Registry, ann: Caller
    ) -> None:
        bob = caller(reg, "bob")
        secret = weights(40_000, seed=7)
        push_ingested(reg, bob, "bob/secret", {"a.bin": secret}, private=True)
        said = []
        for data in (secret, weights(40_000, seed=8)):
            with pytest.raises(TensorNotFound) as refused:
                submit_recipe(reg, ann, "ann/m", file_of([data])[1])
            said.append(str(refused.value).replace(tensor_id(data).hex(), "<id>"))
        assert said[0] == said[1]
        ref = TensorRef(tensor_id(BASE), 10, "U8", (10,), None)
        wrong = Recipe(10, bytes(32), "opaque", (ref,))
        with pytest.raises(TensorNotFound):
            submit_recipe(reg, ann, "ann/m", wrong.to_bytes())

    def test_somebody_elses_file_has_to_be_proved_too(self, reg: Registry, ann: Caller) -> None:
        bob = caller(reg, "bob")
        data, recipe = file_of([BASE])
        first = submit_recipe(reg, ann, "ann/m", recipe)
        assert first.job_id is not None
        run_job(reg, first.job_id)
        ensure_repository(reg, bob, "bob/m")
        with pytest.raises(UploadNotFound):
            commit_file(reg, bob, "bob/m", data)
        second = submit_recipe(reg, bob, "bob/m", recipe)
        assert second.state == "proving"
        assert second.job_id is not None
        run_job(reg, second.job_id)
        commit_file(reg, bob, "bob/m", data)
        assert count(reg, File) == 2

    def test_a_file_that_was_only_landed_is_read_from_the_proved_recipe(
        self, reg: Registry, ann: Caller
    ) -> None:
        bob = caller(reg, "bob")
        data, recipe = file_of([BASE])
        ensure_repository(reg, bob, "bob/secret", private=True)
        ensure_repository(reg, bob, "bob/m")
        sha256 = upload(reg, bob, data)
        submitted = submit_recipe(reg, ann, "ann/m", recipe)
        commit(reg, bob, "bob/m", "main", [AddFile("m.bin", sha256, len(data))])
        assert submitted.job_id is not None
        run_job(reg, submitted.job_id)
        with reg.db.read() as session:
            file = session.scalars(select(File).where(File.sha256 == sha256)).one()
        assert (file.state, file.landing_id) == ("ingested", None)
        assert b"".join(FileReader(reg).stream_file(file, 0, file.size)) == data
        assert not list(reg.store.list("landing/"))

    def test_one_recipe_is_proved_by_one_job(self, reg: Registry, ann: Caller) -> None:
        _, recipe = file_of([BASE])
        ids = {submit_recipe(reg, ann, "ann/m", recipe).job_id for _ in range(3)}
        assert len(ids) == 1
        with reg.db.read() as session:
            holding = set(session.scalars(select(Hold.job_id).where(Hold.job_id.is_not(None))))
            assert ids <= holding <= set(session.scalars(select(Job.id)))

    def test_from_when_on_there_is_a_job_it_holds_all_that_its_recipe_needs(
        self, reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("deltahub.registry.uploads.recipes.PART_TENSORS", 1)
        _, recipe = file_of([TUNED, BASE])
        send_pack(reg, ann, "ann/m", frames_of(TUNED, BASE))
        n_held: list[int] = []

        def look(connection: Connection) -> None:
            """Number of tensors that the job holds, if any, at the end of each transaction."""
            held = select(func.count()).where(Hold.job_id == Job.id).scalar_subquery()
            n_held.extend(connection.scalars(select(held).where(Job.kind == "prove_recipe")))

        event.listen(reg.db.write_engine, "commit", look)
        submitted = submit_recipe(reg, ann, "ann/m", recipe)
        event.remove(reg.db.write_engine, "commit", look)
        assert submitted.job_id is not None
        assert n_held == [2]

    @pytest.mark.parametrize("data", [b"", b"nonsense", b"DHRC" + bytes(60)])
    def test_bytes_that_are_no_recipe_are_refused(
        self, reg: Registry, ann: Caller, data: bytes
    ) -> None:
        with pytest.raises(InvalidFrame, match="recipe"):
            submit_recipe(reg, ann, "ann/m", data)

    def test_recipes_are_for_writers_and_limited(self, reg: Registry, ann: Caller) -> None:
        _, recipe = file_of([BASE])
        with pytest.raises(Forbidden):
            submit_recipe(reg, caller(reg, "bob"), "ann/m", recipe)
        reg.settings = reg.settings.model_copy(update={"max_file_bytes": 100})
        with pytest.raises(LimitExceeded):
            submit_recipe(reg, ann, "ann/m", recipe)
        reg.settings = reg.settings.model_copy(update={"max_recipe_bytes": 10})
        with pytest.raises(LimitExceeded):
            submit_recipe(reg, ann, "ann/m", recipe)


def commit_file(reg: Registry, who: Caller, name: str, data: bytes) -> None:
    commit(reg, who, name, "main", [AddFile("m.bin", sha256_of(data), len(data))])


def run_job_again(reg: Registry, job_id: str) -> None:
    """Repeat the job, like after a crash of its worker after the last transaction."""
    with reg.db.read() as session:
        payload = session.get_one(Job, job_id).payload
    verify_recipe(reg, FileReader(reg), job_id, payload)
