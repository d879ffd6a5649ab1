"""What people outside get of a base that became private or was deleted: nothing, by any door."""

import pytest
import torch
from sqlalchemy import select

from deltahub.registry import Caller, Registry
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.entries import find_entry
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.db.models import Tensor
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.downloads.links import FrameLink, link_frames
from deltahub.registry.downloads.plan import PlannedTensor, plan_download, stream_frames
from deltahub.registry.errors import InvalidFrame, TensorNotFound
from deltahub.registry.lineage.measured import measure_lineage, measured_bases
from deltahub.registry.reencode.withdraw import Change
from deltahub.registry.reports.revision import report_revision
from deltahub.registry.uploads.client_packs import accept_pack
from deltahub.registry.uploads.known_files import query_and_keep
from deltahub.registry.uploads.known_tensors import query_and_hold
from deltahub.registry.uploads.recipes import submit_recipe
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested, read_file, run_replans, stored_tensors
from support.registry.opened import sha256_of, upload
from support.registry.withdrawing import (
    BASE,
    CHANGES,
    OUTSIDE,
    PATH,
    TUNES,
    Models,
    needs_base,
    tune,
    withdraw_now,
)
from support.service.client_door import pack_and_recipe

pytestmark = pytest.mark.parametrize("change", CHANGES)


@pytest.fixture
def hashes(reg: Registry, models: Models) -> list[bytes]:
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


def links(reg: Registry, who: Caller, name: str, tensor: bytes) -> tuple[FrameLink, ...]:
    with reg.db.read() as session:
        revision = resolve_revision(session, load_repository(session, who, name), "main")
    return link_frames(reg, who, revision, [tensor]).links


def frames(reg: Registry, who: Caller | None, name: str, tensor: bytes) -> bytes:
    with reg.db.read() as session:
        revision = resolve_revision(session, load_repository(session, who, name), "main")
    return b"".join(stream_frames(reg, FileReader(reg), who, revision, [tensor]).chunks)


def plan_of(reg: Registry, who: Caller | None, name: str) -> tuple[PlannedTensor, ...]:
    with reg.db.read() as session:
        revision = resolve_revision(session, load_repository(session, who, name), "main")
        file = find_entry(session, revision, PATH).file
    return plan_download(reg, FileReader(reg), who, file).tensors


def send(reg: Registry, who: Caller, name: str, pack: bytes) -> None:
    accept_pack(reg, FileReader(reg), who, name, upload(reg, who, pack))


def test_no_plan_names_the_base_and_no_frame_needs_it(
    reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change, hashes: list[bytes]
) -> None:
    withdraw_now(reg, ann, "ann/base", change)
    for name in OUTSIDE:
        for stored in plan_of(reg, bob, name):
            assert not set(stored.bases) & set(hashes)
            data = frames(reg, bob, name, stored.id)
            assert not any(content in data for content in hashes)
        for content in hashes:
            with pytest.raises(TensorNotFound):
                frames(reg, bob, name, content)


def test_no_report_names_the_base(
    reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change
) -> None:
    before = report_revision(reg, FileReader(reg), bob, "bob/tuned").base
    assert before.measured[0].repository == "ann/base"
    assert before.commit is not None
    withdraw_now(reg, ann, "ann/base", change)
    for is_measured_again in (False, True):
        for name in OUTSIDE:
            if is_measured_again:
                with reg.db.write() as session:
                    measure_lineage(session, models.tunes[name])
            base = report_revision(reg, FileReader(reg), bob, name).base
            assert base.declared == TUNES[name][1]  # what the owner of the fine-tune wrote
            assert all(each.repository != "ann/base" for each in base.measured)
            if base.declared == "ann/base":
                assert (base.declared_status, base.commit) == ("absent", None)
            with reg.db.read() as session:
                repository = load_repository(session, bob, name)
                revision = resolve_revision(session, repository, "main")
                assert "ann/base" not in measured_bases(session, bob, revision)


def test_knowing_its_hashes_gives_nothing(
    reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change, hashes: list[bytes]
) -> None:
    with reg.db.read() as session:
        sizes = {tensor.hash: tensor.size for tensor in session.scalars(select(Tensor))}
    wanted = [(content, sizes[content]) for content in hashes]
    whole = [(sha256_of(BASE), len(BASE))]
    # The hub promises to keep them for bob's next commit; this ends, too.
    assert query_and_hold(reg, bob, "bob/tuned", wanted) == hashes
    assert query_and_keep(reg, bob, "bob/tuned", whole) == [sha256_of(BASE)]
    withdraw_now(reg, ann, "ann/base", change)
    assert query_and_hold(reg, bob, "bob/tuned", wanted) == []
    assert query_and_keep(reg, bob, "bob/tuned", whole) == []
    _, recipe = pack_and_recipe(BASE, tiny.to_file({"unlike": torch.zeros(1)}))
    with pytest.raises(TensorNotFound):
        submit_recipe(reg, bob, "bob/tuned", recipe)


def test_no_client_may_send_a_delta_of_it(
    reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change
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
    reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change
) -> None:
    withdraw_now(reg, ann, "ann/base", change)
    for who, name in ((bob, "bob/new"), (ann, "ann/new")):
        models.tunes[name] = push_ingested(reg, who, name, {PATH: tune(7e-5)}, base="ann/base")
        run_replans(reg)
        assert not needs_base(reg, models, name)
        assert read_file(reg, models.tunes[name], PATH) == tune(7e-5)


def test_the_same_bytes_pushed_again_do_not_reveal_their_base(
    reg: Registry,
    ann: Caller,
    bob: Caller,
    models: Models,
    change: Change,
    hashes: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ann/tuned is public data that only ann may read, so it is still a delta of the base."""
    push_ingested(reg, ann, "ann/second", {PATH: BASE})
    withdraw_now(reg, ann, "ann/tuned", "private")
    withdraw_now(reg, ann, "ann/base", change)
    withdraw_now(reg, ann, "ann/second", change)
    assert needs_base(reg, models, "ann/tuned")
    pushed = push_ingested(reg, bob, "bob/pushed", {PATH: TUNES["ann/tuned"][0]})
    reg.settings = reg.settings.model_copy(update={"s3_link_endpoint": "https://s3.test"})
    monkeypatch.setattr(reg.store, "link", lambda *_: "https://s3.test/pack")
    refused = 0
    for stored in plan_of(reg, bob, "bob/pushed"):
        assert not set(stored.bases) & set(hashes)
        if stored.depth > 0:
            refused += 1
            assert stored.encoded_size == stored.size  # a client asks for plain bytes then
            with pytest.raises(TensorNotFound, match="may not read"):
                frames(reg, bob, "bob/pushed", stored.id)
            assert not links(reg, bob, "bob/pushed", stored.id)
        else:
            assert frames(reg, bob, "bob/pushed", stored.id)
            assert links(reg, bob, "bob/pushed", stored.id)
    assert refused > 0
    assert read_file(reg, pushed, PATH) == TUNES["ann/tuned"][0]
