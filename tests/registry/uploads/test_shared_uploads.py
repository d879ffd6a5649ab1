"""One upload that several requests or jobs use: the first to finish does not break the others."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from deltahub.codecs.files.recipe import Recipe
from deltahub.codecs.ids import tensor_id
from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.db.models import Landing
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import HashMismatch, UploadNotFound
from deltahub.registry.ingest.pipeline import Ingest
from deltahub.registry.ingest.verify_recipe import verify_recipe
from deltahub.registry.jobs import queue
from deltahub.registry.uploads.client_pack_index import UploadedFrame
from deltahub.registry.uploads.client_packs import accept_pack
from deltahub.registry.uploads.known_files import query_and_keep
from deltahub.registry.uploads.known_tensors import query_and_hold
from deltahub.registry.uploads.landing import LandingStatus, receive, status
from deltahub.registry.uploads.recipes import submit_recipe
from deltahub.registry.uploads.verify_frames import FrameVerifier
from support.registry.client_packs import file_of, frames_of, pack_of, send_pack, weights
from support.registry.collecting import age_everything, collect, is_clean
from support.registry.ingested import read_file
from support.registry.opened import (
    caller,
    ensure_repository,
    opened_registry,
    push,
    sha256_of,
    upload,
)

DATA = weights(40_000)


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def n_landings(reg: Registry) -> int:
    with reg.db.read() as session:
        return session.scalar(select(func.count()).select_from(Landing)) or 0


def run_job(reg: Registry, job_id: str | None) -> None:
    assert job_id is not None
    with reg.db.write() as session:
        assert queue.mark_running(session, job_id)
        payload = session.get_one(Job, job_id).payload
    try:
        verify_recipe(reg, FileReader(reg), job_id, payload)
    finally:
        with reg.db.write() as session:
            queue.mark_done(session, job_id, {})


def ready_repositories(reg: Registry, who: Caller) -> Sequence[str]:
    """Two repositories in one domain and one in another, each with the tensor."""
    names = ("ann/one", "ann/two", "ann/secret")
    for name in names:
        ensure_repository(reg, who, name, private=name == "ann/secret")
        send_pack(reg, who, name, frames_of(DATA))
    return names


def test_one_recipe_serves_several_repositories(reg: Registry, ann: Caller) -> None:
    names = ready_repositories(reg, ann)
    data, recipe = file_of([DATA])
    submitted = [submit_recipe(reg, ann, name, recipe) for name in names]
    for each in submitted:
        run_job(reg, each.job_id)
    for name in names:
        commit(reg, ann, name, "main", [AddFile("m.bin", sha256_of(data), len(data))])
    assert n_landings(reg) == 0
    assert not list(reg.store.list("landing/"))


def test_a_recipe_that_lies_is_told_so_by_each_job(reg: Registry, ann: Caller) -> None:
    names = ready_repositories(reg, ann)
    honest = Recipe.from_bytes(file_of([DATA])[1])
    lie = Recipe(honest.size, bytes.fromhex(sha256_of(b"x")), "opaque", honest.segments)
    submitted = [submit_recipe(reg, ann, name, lie.to_bytes()) for name in names]
    for each in submitted:
        with pytest.raises(HashMismatch):
            run_job(reg, each.job_id)
    assert n_landings(reg) == 0


def test_a_recipe_submitted_while_another_job_lets_go_of_it_is_kept_anew(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = ready_repositories(reg, ann)
    data, recipe = file_of([DATA])
    job_id = submit_recipe(reg, ann, first, recipe).job_id
    n_received = 0

    def receive_late(*args: Any, **options: Any) -> LandingStatus:
        nonlocal n_received
        n_received += 1
        found = receive(*args, **options)
        if n_received == 1:
            run_job(reg, job_id)
        return found

    monkeypatch.setattr("deltahub.registry.uploads.recipes.receive", receive_late)
    submitted = submit_recipe(reg, ann, second, recipe)
    run_job(reg, submitted.job_id)
    commit(reg, ann, second, "main", [AddFile("m.bin", sha256_of(data), len(data))])
    assert n_landings(reg) == 0


def test_a_pack_that_another_request_takes_meanwhile_is_gone_not_lost(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that waited too long asks again, while the hub still works on its first request."""
    ensure_repository(reg, ann, "ann/m")
    sha256 = upload(reg, ann, pack_of(frames_of(DATA)))
    take, is_first = FrameVerifier.take, True

    def take_late(self: FrameVerifier, tensor: bytes, frames: Sequence[UploadedFrame]) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            accept_pack(reg, FileReader(reg), ann, "ann/m", sha256)
        take(self, tensor, frames)

    monkeypatch.setattr(FrameVerifier, "take", take_late)
    with pytest.raises(UploadNotFound):
        accept_pack(reg, FileReader(reg), ann, "ann/m", sha256)
    assert query_and_hold(reg, ann, "ann/m", [(tensor_id(DATA), len(DATA))]) == [tensor_id(DATA)]


def say_it_is_here_by_put(reg: Registry, who: Caller, sha256: str, data: bytes) -> None:
    assert receive(reg, who, sha256, len(data), 0, []).is_complete


def say_it_is_here_by_head(reg: Registry, who: Caller, sha256: str, data: bytes) -> None:
    assert status(reg, who, sha256).is_complete


def say_it_is_here_by_query(reg: Registry, who: Caller, sha256: str, data: bytes) -> None:
    assert query_and_keep(reg, who, "ann/secret", [(sha256, len(data))]) == [sha256]


DAY_S = 86400
WORKERS_TTL_S = [0, DAY_S, 30 * DAY_S]


def go_on_as_worker(reg: Registry, upload_ttl_s: int) -> None:
    """Continue as in a process with other settings than the one that took the upload."""
    reg.settings = reg.settings.model_copy(update={"upload_ttl_s": upload_ttl_s})


@pytest.mark.parametrize("upload_ttl_s", WORKERS_TTL_S)
@pytest.mark.parametrize(
    "say_it_is_here", [say_it_is_here_by_put, say_it_is_here_by_head, say_it_is_here_by_query]
)
def test_an_upload_that_is_said_to_be_here_stays_while_another_repository_ingests_it(
    reg: Registry,
    ann: Caller,
    say_it_is_here: Callable[[Registry, Caller, str, bytes], None],
    upload_ttl_s: int,
) -> None:
    """Two pushes of one user, to a private repository and to a public one: no domain in common."""
    secret = push(reg, ann, "ann/secret", {"a.bin": DATA}, private=True)
    assert secret.job_id is not None
    say_it_is_here(reg, ann, sha256_of(DATA), DATA)
    go_on_as_worker(reg, upload_ttl_s)
    Ingest(reg, FileReader(reg), 1, secret.job_id).run()
    assert n_landings(reg) == 1
    ensure_repository(reg, ann, "ann/open")
    add = AddFile("b.bin", sha256_of(DATA), len(DATA))
    opened = commit(reg, ann, "ann/open", "main", [add])
    assert opened.job_id is not None
    Ingest(reg, FileReader(reg), 2, opened.job_id).run()
    assert read_file(reg, 2, "b.bin") == DATA
    age_everything(reg, 2)
    collect(reg)
    assert (n_landings(reg), list(reg.store.list("landing/"))) == (0, [])
    assert is_clean(reg)


@pytest.mark.parametrize("upload_ttl_s", WORKERS_TTL_S)
def test_an_upload_that_nobody_else_was_told_of_goes_with_its_ingest(
    reg: Registry, ann: Caller, upload_ttl_s: int
) -> None:
    pushed = push(reg, ann, "ann/secret", {"a.bin": DATA}, private=True)
    assert pushed.job_id is not None
    go_on_as_worker(reg, upload_ttl_s)
    Ingest(reg, FileReader(reg), 1, pushed.job_id).run()
    assert (n_landings(reg), list(reg.store.list("landing/"))) == (0, [])


def test_a_pack_that_is_said_to_be_here_can_still_be_named_after_another_request(
    reg: Registry, ann: Caller
) -> None:
    for name in ("ann/one", "ann/two"):
        ensure_repository(reg, ann, name, private=name == "ann/two")
    pack = pack_of(frames_of(DATA))
    sha256 = upload(reg, ann, pack)
    say_it_is_here_by_put(reg, ann, sha256, pack)
    for name in ("ann/one", "ann/two"):
        assert accept_pack(reg, FileReader(reg), ann, name, sha256).n_tensors == 1
