"""Events between the transactions that insert the tensors of one pack in parts."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from sqlalchemy import update

from deltahub.codecs.ids import tensor_id
from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import Hold, Tensor, utc_now
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Conflict, InvalidFrame
from deltahub.registry.packs.switch import BaseGone, in_parts
from deltahub.registry.packs.writer import SealedPacks
from deltahub.registry.uploads.client_packs import accept_pack
from deltahub.registry.uploads.known_tensors import query_and_hold
from support.registry.client_packs import frames_of, near, pack_of, weights
from support.registry.collecting import collect, count, is_clean
from support.registry.ingested import push_ingested, read_file, stored_tensors
from support.registry.opened import caller, ensure_repository, opened_registry, upload

PART = 4
BASE = weights(40_000)
TUNED = near(BASE)
OTHERS = [weights(100, seed) for seed in range(1, PART + 1)]

Between = Callable[[Callable[[], None]], None]


@pytest.fixture
def reg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr("deltahub.registry.packs.switch.PART_TENSORS", PART)
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


@pytest.fixture
def between_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    """between_parts(act): act runs once, after the commit of the first part, before the second."""
    todo: list[Callable[[], None]] = []

    def parts(sealed: SealedPacks) -> Iterator[SealedPacks]:
        for number, part in enumerate(in_parts(sealed)):
            if number == 1 and todo:
                todo.pop()()
            yield part

    for writer in ("packs.switch", "uploads.client_packs"):
        monkeypatch.setattr(f"deltahub.registry.{writer}.in_parts", parts)
    yield todo.append
    assert not todo, "there was no second part"


def end_holds(reg: Registry, *, of_jobs_only: bool = False) -> None:
    past = utc_now() - timedelta(days=9)
    ended = update(Hold).values(expires_at=past)
    with reg.db.write() as session:
        session.execute(ended.where(Hold.job_id.is_not(None)) if of_jobs_only else ended)


def model_of(tensors: dict[str, bytes]) -> bytes:
    words = {name: np.frombuffer(data, "<f2") for name, data in tensors.items()}
    return save({name: data.reshape(100, -1) for name, data in words.items()})


def test_a_pack_that_is_collected_between_two_parts_is_taken_when_it_is_named_again(
    reg: Registry, ann: Caller, between_parts: Between
) -> None:
    ensure_repository(reg, ann, "ann/m", private=True)
    tensors = [*OTHERS, TUNED]
    sha256 = upload(reg, ann, pack_of(frame for data in tensors for frame in frames_of(data)))

    def collect_the_first() -> None:
        assert count(reg, Tensor) == PART
        end_holds(reg)
        collect(reg)
        assert count(reg, Tensor) == 0

    between_parts(collect_the_first)
    with pytest.raises(Conflict, match="collected while its tensors were made known"):
        accept_pack(reg, FileReader(reg), ann, "ann/m", sha256)
    assert count(reg, Tensor) == 0
    assert is_clean(reg)
    assert accept_pack(reg, FileReader(reg), ann, "ann/m", sha256).n_tensors == len(tensors)
    assert is_clean(reg)


def test_a_base_that_goes_between_two_parts_refuses_what_needs_it_and_no_more(
    reg: Registry, ann: Caller, between_parts: Between
) -> None:
    push_ingested(reg, ann, "ann/base", {"a.bin": BASE})
    ensure_repository(reg, ann, "ann/m", private=True)
    frames = [frame for data in OTHERS for frame in frames_of(data)] + frames_of(TUNED, BASE)
    sha256 = upload(reg, ann, pack_of(frames))

    def delete_base() -> None:
        delete_repository(reg, ann, "ann/base")
        end_holds(reg, of_jobs_only=True)
        # Without a lease, gc would copy the pack, half of whose tensors have no row yet.
        collect(reg, lease_s=3600)

    between_parts(delete_base)
    with pytest.raises(BaseGone):
        accept_pack(reg, FileReader(reg), ann, "ann/m", sha256)
    assert is_clean(reg)
    asked = [(tensor_id(data), len(data)) for data in (*OTHERS, TUNED)]
    assert query_and_hold(reg, ann, "ann/m", asked) == [tensor_id(data) for data in OTHERS]
    with pytest.raises(InvalidFrame, match="send it whole"):
        accept_pack(reg, FileReader(reg), ann, "ann/m", sha256)


def test_an_ingest_whose_base_goes_between_two_parts_stores_the_rest_alone(
    reg: Registry, ann: Caller, between_parts: Between
) -> None:
    layers = {f"layer.{i}": weights(20_000, seed=10 + i) for i in range(PART + 2)}
    tuned = model_of({name: near(data) for name, data in layers.items()})
    push_ingested(reg, ann, "ann/base", {"m.safetensors": model_of(layers)})

    def delete_base() -> None:
        delete_repository(reg, ann, "ann/base")
        end_holds(reg)
        collect(reg, lease_s=3600)

    between_parts(delete_base)
    revision = push_ingested(reg, ann, "ann/tune", {"m.safetensors": tuned}, base="ann/base")
    assert {stored.depth for stored in stored_tensors(reg, revision).values()} == {0, 1}
    assert read_file(reg, revision, "m.safetensors") == tuned
    assert is_clean(reg)
