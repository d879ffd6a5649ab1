"""One upload that several requests or jobs work on: who is first takes it from nobody."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import func, select

from deltahub.codecs.ids import tensor_id
from deltahub.codecs.recipe import Recipe
from deltahub.registry import Caller, Registry, jobs
from deltahub.registry.accept import accept_pack
from deltahub.registry.db.models import Job, Landing
from deltahub.registry.decode_uploaded import FrameTaker
from deltahub.registry.errors import HashMismatch, UploadNotFound
from deltahub.registry.landing import LandingStatus, receive
from deltahub.registry.prove import prove_recipe, submit_recipe
from deltahub.registry.repositories import ensure_repository
from deltahub.registry.revisions import AddFile, commit
from deltahub.registry.tensors import query_and_hold
from deltahub.registry.upload_pack import UploadedFrame
from support.client_packs import file_of, frames_of, pack_of, send_pack, weights
from support.registry import caller, opened_registry, sha256_of, upload

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
        assert jobs.mark_running(session, job_id)
        payload = session.get_one(Job, job_id).payload
    try:
        prove_recipe(reg, job_id, payload)
    finally:
        with reg.db.write() as session:
            jobs.mark_done(session, job_id, {})


def ready_repositories(reg: Registry, who: Caller) -> Sequence[str]:
    """Two in one domain and one in another, each with the tensor."""
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

    def receive_late(reg: Registry, who: Caller, sha256: str, *args: object) -> LandingStatus:
        nonlocal n_received
        n_received += 1
        found = receive(reg, who, sha256, *args)  # type: ignore[arg-type]
        if n_received == 1:
            run_job(reg, job_id)
        return found

    monkeypatch.setattr("deltahub.registry.prove.receive", receive_late)
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
    take, is_first = FrameTaker.take, True

    def take_late(self: FrameTaker, tensor: bytes, frames: Sequence[UploadedFrame]) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            accept_pack(reg, ann, "ann/m", sha256)
        take(self, tensor, frames)

    monkeypatch.setattr(FrameTaker, "take", take_late)
    with pytest.raises(UploadNotFound):
        accept_pack(reg, ann, "ann/m", sha256)
    assert query_and_hold(reg, ann, "ann/m", [(tensor_id(DATA), len(DATA))]) == [tensor_id(DATA)]
