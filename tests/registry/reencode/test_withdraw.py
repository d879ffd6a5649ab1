"""A public base that becomes private or is deleted cannot be computed from anybody's fine-tunes."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from sqlalchemy import func, select

from deltahub.codecs.ids import tensor_id
from deltahub.registry import Caller, Registry
from deltahub.registry.access.repositories import find_repository, load_repository
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.catalog.repositories import get_repository
from deltahub.registry.db.models import Hold, Job, LineageEdge, Revision, Tensor, TensorBase
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.downloads.plan import plan_download, stream_frames
from deltahub.registry.errors import (
    Forbidden,
    InvalidFrame,
    RepositoryNotFound,
    StorageFull,
    TensorNotFound,
)
from deltahub.registry.ingest.make_public import make_public
from deltahub.registry.jobs import queue
from deltahub.registry.jobs.requests import cancel_job
from deltahub.registry.lineage.measured import measured_bases
from deltahub.registry.reencode.withdraw import Change, Withdrawing, withdraw
from deltahub.registry.reports.revision import report_revision
from deltahub.registry.uploads.known_files import query_and_keep
from deltahub.registry.uploads.known_tensors import query_and_hold
from deltahub.registry.uploads.recipes import submit_recipe
from support.models import tiny_models as tiny
from support.registry.client_packs import file_of, frames_of, near, send_pack
from support.registry.collecting import age_everything, collect, is_clean
from support.registry.ingested import push_ingested, read_file, run_replans, stored_tensors
from support.registry.opened import caller, ensure_repository, opened_registry, sha256_of, upload
from support.registry.withdrawing import SILENT, run_withdrawal, withdraw_now
from support.service.client_door import pack_and_recipe

PATH = "model.safetensors"
BASE = tiny.to_file(tiny.base())
CHANGES: tuple[Change, ...] = ("private", "delete")


def tune(learning_rate: float) -> bytes:
    return tiny.to_file(tiny.finetune(learning_rate))


# name -> its bytes, its declared base, whether it is private
TUNES = {
    "ann/tuned": (tune(1e-5), "ann/base", False),
    "bob/tuned": (tune(2e-5), "ann/base", False),
    "bob/again": (tune(3e-5), "bob/tuned", False),
    "bob/hidden": (tune(4e-5), "ann/base", True),
    "ann/hidden": (tune(5e-5), "ann/base", True),
}
OUTSIDE = ("ann/tuned", "bob/tuned", "bob/again", "bob/hidden")


@dataclass(frozen=True)
class Models:
    """Row ids: of the base's revision and tensors, and of the fine-tunes' revisions."""

    base: int
    base_tensors: frozenset[int]
    tunes: dict[str, int]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Models]:
    """A folder with ann/base and its fine-tunes; bob/again is a delta of a delta."""
    folder = tmp_path_factory.mktemp("models")
    with opened_registry(folder) as reg:
        people = {name: caller(reg, name) for name in ("ann", "bob")}
        base = push_ingested(reg, people["ann"], "ann/base", {PATH: BASE, "config.json": b"{}"})
        tunes = {
            name: push_ingested(
                reg, people[name[:3]], name, {PATH: data}, base=declared, private=is_private
            )
            for name, (data, declared, is_private) in TUNES.items()
        }
        rows = frozenset(stored.id for stored in stored_tensors(reg, base).values())
        models = Models(base, rows, tunes)
        assert all(needs_base(reg, models, name) for name in TUNES)
        again = stored_tensors(reg, tunes["bob/again"])
        assert max(stored.depth for stored in again.values()) == 2
    return folder, models


@pytest.fixture
def models(made: tuple[Path, Models], tmp_path: Path) -> Models:
    shutil.copytree(made[0] / "data", tmp_path / "data")
    return replace(made[1], tunes=dict(made[1].tunes))


@pytest.fixture
def reg(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    if "models" in request.fixturenames:
        request.getfixturevalue("models")
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


@pytest.fixture
def bob(reg: Registry) -> Caller:
    return caller(reg, "bob")


def needs_base(reg: Registry, models: Models, name: str) -> bool:
    """Whether decoding the fine-tune reads a tensor of the base that is not the fine-tune's own."""
    own = {stored.id for stored in stored_tensors(reg, models.tunes[name]).values()}
    needed, level = set(own), set(own)
    with reg.db.read() as session:
        while level:
            query = select(TensorBase.base_id).where(TensorBase.tensor_id.in_(level))
            level = set(session.scalars(query)) - needed
            needed |= level
    return bool((needed - own) & models.base_tensors)


def check_files(reg: Registry, models: Models, *names: str) -> None:
    for name in names or TUNES:
        assert read_file(reg, models.tunes[name], PATH) == TUNES[name][0]
    assert is_clean(reg)


@pytest.mark.parametrize("change", CHANGES)
def test_everybody_outside_is_stored_without_the_base_first(
    reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change
) -> None:
    asked = withdraw(reg, ann, "ann/base", change)
    assert asked is not None
    assert asked.models == 3  # bob/again is a delta of bob/tuned alone
    assert not get_repository(reg, None, "ann/base").is_private
    assert run_withdrawal(reg, asked.job_id) > 0
    for who in (bob, None):
        with pytest.raises(RepositoryNotFound):
            get_repository(reg, who, "ann/base")
    assert not any(needs_base(reg, models, name) for name in OUTSIDE)
    assert needs_base(reg, models, "ann/hidden")  # only ann's namespace may read it
    check_files(reg, models)
    run_replans(reg)
    assert not any(needs_base(reg, models, name) for name in OUTSIDE)
    age_everything(reg, days=30)
    collect(reg)
    check_files(reg, models)
    if change == "private":
        assert read_file(reg, models.base, PATH) == BASE


def test_others_stay_deltas_of_each_other(reg: Registry, ann: Caller, models: Models) -> None:
    """Nobody has to store every fine-tune in full because one base leaves."""
    withdraw_now(reg, ann, "ann/base", "private")
    depths = [
        stored.depth
        for name in OUTSIDE
        for stored in stored_tensors(reg, models.tunes[name]).values()
    ]
    assert max(depths) > 0


def test_a_model_without_dependents_changes_at_once(
    reg: Registry, ann: Caller, bob: Caller
) -> None:
    push_ingested(reg, ann, "ann/alone", {PATH: BASE})
    push_ingested(reg, ann, "ann/mine", {PATH: tune(1e-5)}, base="ann/alone", private=True)
    assert withdraw(reg, ann, "ann/alone", "private") is None
    assert withdraw(reg, ann, "ann/alone", "private") is None
    assert withdraw(reg, ann, "ann/alone", "delete") is None
    with pytest.raises(RepositoryNotFound):
        withdraw(reg, ann, "ann/alone", "delete")


def test_a_base_that_another_public_model_holds_too_needs_nothing(
    reg: Registry, ann: Caller, bob: Caller, models: Models
) -> None:
    push_ingested(reg, bob, "bob/copy", {PATH: BASE})
    assert withdraw(reg, ann, "ann/base", "delete") is None
    assert needs_base(reg, models, "bob/tuned")
    # The copy was the last one.
    assert withdraw_now(reg, bob, "bob/copy", "private") is not None
    assert not any(needs_base(reg, models, name) for name in ("ann/tuned", "bob/tuned"))
    assert needs_base(reg, models, "bob/hidden")
    check_files(reg, models)


def test_a_private_copy_in_a_namespace_serves_the_private_models_there(
    reg: Registry, ann: Caller, bob: Caller, models: Models
) -> None:
    push_ingested(reg, bob, "bob/copy", {PATH: BASE}, private=True)
    asked = withdraw_now(reg, ann, "ann/base", "private")
    assert asked is not None
    assert asked.models == 2
    assert needs_base(reg, models, "bob/hidden")
    assert not needs_base(reg, models, "bob/tuned")


@pytest.mark.parametrize("change", CHANGES)
def test_an_earlier_revision_does_not_leave_through_a_later_one_that_is_public_elsewhere(
    reg: Registry, ann: Caller, bob: Caller, change: Change
) -> None:
    first = push_ingested(reg, ann, "ann/base", {PATH: BASE})
    later = push_ingested(reg, ann, "ann/base", {PATH: tune(1e-5)})
    copied = push_ingested(reg, bob, "bob/copy", {PATH: tune(1e-5)})
    made = Models(
        first,
        frozenset(s.id for s in stored_tensors(reg, first).values()),
        {"ann/tuned": later, "bob/copy": copied},
    )
    assert needs_base(reg, made, "bob/copy")
    withdraw_now(reg, ann, "ann/base", change)
    assert not needs_base(reg, made, "bob/copy")
    assert read_file(reg, copied, PATH) == tune(1e-5)
    assert is_clean(reg)


class TestDoors:
    """What an outsider gets of the base afterwards: nothing."""

    @pytest.fixture(params=CHANGES)
    def change(self, request: pytest.FixtureRequest) -> Change:
        changes: Change = request.param
        return changes

    @pytest.fixture
    def hashes(self, reg: Registry, models: Models) -> list[bytes]:
        """The content ids of the base's tensors that no fine-tune has, too."""
        shared = {
            stored.id
            for revision in models.tunes.values()
            for stored in stored_tensors(reg, revision).values()
        }
        with reg.db.read() as session:
            rows = session.scalars(select(Tensor).where(Tensor.id.in_(models.base_tensors - shared)))
            found = [row.hash for row in rows]
        assert found
        return found

    def frames(self, reg: Registry, who: Caller | None, name: str, tensor: bytes) -> bytes:
        with reg.db.read() as session:
            revision = resolve_revision(session, load_repository(session, who, name), "main")
        return b"".join(stream_frames(reg, FileReader(reg), who, revision, [tensor]).chunks)

    def test_no_plan_names_the_base_and_no_frame_needs_it(
        self, reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change,
        hashes: list[bytes],
    ) -> None:  # fmt: skip
        withdraw_now(reg, ann, "ann/base", change)
        for name in OUTSIDE:
            report = report_revision(reg, FileReader(reg), bob, name)
            assert all(base.repository != "ann/base" for base in report.base.measured)
            with reg.db.read() as session:
                repository = load_repository(session, bob, name)
                revision = resolve_revision(session, repository, "main")
                assert "ann/base" not in measured_bases(session, bob, revision)
            for file in report.files:
                assert file.path == PATH
            for stored in plan_of(reg, bob, name):
                assert not set(stored.bases) & set(hashes)
                data = self.frames(reg, bob, name, stored.id)
                assert not any(content in data for content in hashes)
            for content in hashes:
                with pytest.raises(TensorNotFound):
                    self.frames(reg, bob, name, content)

    def test_knowing_its_hashes_gives_nothing(
        self, reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change,
        hashes: list[bytes],
    ) -> None:  # fmt: skip
        with reg.db.read() as session:
            sizes = {t.hash: t.size for t in session.scalars(select(Tensor))}
        wanted = [(content, sizes[content]) for content in hashes]
        # A hold from before ends, too.
        assert query_and_hold(reg, bob, "bob/tuned", wanted) == hashes
        assert query_and_keep(reg, bob, "bob/tuned", [(sha256_of(BASE), len(BASE))]) != []
        withdraw_now(reg, ann, "ann/base", change)
        assert query_and_hold(reg, bob, "bob/tuned", wanted) == []
        assert query_and_keep(reg, bob, "bob/tuned", [(sha256_of(BASE), len(BASE))]) == []
        _, recipe = pack_and_recipe(BASE, tiny.to_file({"unlike": torch.zeros(1)}))
        with pytest.raises(TensorNotFound):
            submit_recipe(reg, bob, "bob/tuned", recipe)

    def test_no_client_may_send_a_delta_of_it(
        self, reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change
    ) -> None:
        pack, _ = pack_and_recipe(tune(6e-5), BASE)
        withdraw_now(reg, ann, "ann/base", change)
        # ann may still read the private base, but readers of her public model may not.
        for who, name in ((bob, "bob/tuned"), (bob, "bob/hidden"), (ann, "ann/tuned")):
            with pytest.raises(InvalidFrame, match="not here for you and all readers"):
                send(reg, who, name, pack)
        if change == "private":
            send(reg, ann, "ann/hidden", pack)

    def test_no_new_model_becomes_a_delta_of_it(
        self, reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change
    ) -> None:
        withdraw_now(reg, ann, "ann/base", change)
        for who, name in ((bob, "bob/new"), (ann, "ann/new")):
            revision = push_ingested(reg, who, name, {PATH: tune(7e-5)}, base="ann/base")
            run_replans(reg)
            models.tunes[name] = revision
            assert not needs_base(reg, models, name)
            assert read_file(reg, revision, PATH) == tune(7e-5)

    def test_the_same_bytes_pushed_again_do_not_reveal_what_they_are_a_delta_of(
        self, reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change,
        hashes: list[bytes],
    ) -> None:  # fmt: skip
        """ann/hidden is public data that only ann may read, and still a delta of the base."""
        withdraw_now(reg, ann, "ann/tuned", "private")
        push_ingested(reg, ann, "ann/second", {PATH: BASE})  # keeps ann/tuned a delta
        withdraw_now(reg, ann, "ann/base", change)
        withdraw_now(reg, ann, "ann/second", change)
        assert needs_base(reg, models, "ann/tuned")
        push_ingested(reg, bob, "bob/pushed", {PATH: TUNES["ann/tuned"][0]})
        secret = 0
        for stored in plan_of(reg, bob, "bob/pushed"):
            assert not set(stored.bases) & set(hashes)
            if stored.encoded_size == stored.size and stored.depth > 0:
                secret += 1
                with pytest.raises(TensorNotFound, match="may not read"):
                    self.frames(reg, bob, "bob/pushed", stored.id)
            else:
                data = self.frames(reg, bob, "bob/pushed", stored.id)
                assert not any(content in data for content in hashes)
        assert secret > 0
        assert list(plan_of(reg, ann, "ann/tuned"))


def plan_of(reg: Registry, who: Caller | None, name: str) -> tuple:  # type: ignore[type-arg]
    with reg.db.read() as session:
        from deltahub.registry.catalog.entries import find_entry

        revision = resolve_revision(session, load_repository(session, who, name), "main")
        file = find_entry(session, revision, PATH).file
    return plan_download(reg, FileReader(reg), who, file).tensors


def send(reg: Registry, who: Caller, name: str, pack: bytes) -> None:
    from deltahub.registry.uploads.client_packs import accept_pack

    accept_pack(reg, FileReader(reg), who, name, upload(reg, who, pack))
