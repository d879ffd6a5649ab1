"""Recompression makes frames of clients, lower efforts and older releases smaller, without loss."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import select, text, update

from deltahub.codecs._native import FmDeltaEncoder
from deltahub.codecs.fm_delta import codec
from deltahub.registry import Registry
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.commands.maintenance import gc
from deltahub.registry.commands.recompress import recompress
from deltahub.registry.data_folder import RECOMPRESS, RECOMPRESS_LOCK, DataFolderLock
from deltahub.registry.db.models import Frame, Tensor
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.reencode.recompress import Outcome, apply_recompress
from deltahub.registry.storage.keys import pack_key
from support.codecs.frames import forge_header
from support.registry.client_packs import frames_of, near, send_pack, weights
from support.registry.collecting import collect
from support.registry.ingested import push_ingested, read_file, stored_tensors
from support.registry.old_hub import (
    FILES,
    MATRICES,
    PATH,
    OldHub,
    check,
    in_f32,
    make_old_hub,
    model,
    plan,
    recompress_all,
    stored,
)
from support.registry.opened import caller, opened_registry


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> OldHub:
    return make_old_hub(tmp_path_factory.mktemp("old"))


@pytest.fixture
def hub(made: OldHub, tmp_path: Path) -> OldHub:
    shutil.copytree(made.folder, tmp_path, dirs_exist_ok=True)
    return OldHub(tmp_path, made.revisions)


@pytest.fixture
def reg(hub: OldHub) -> Iterator[Registry]:
    with opened_registry(hub.folder) as registry:
        yield registry


def rows(reg: Registry) -> list[object]:
    with reg.db.read() as session:
        tables = session.scalars(text("SELECT name FROM sqlite_master WHERE type = 'table'")).all()
        return [session.execute(text(f"SELECT * FROM {table}")).all() for table in tables]


def run(*arguments: str, of: click.Command = recompress) -> Result:
    return CliRunner().invoke(of, list(arguments))


def test_frames_of_clients_and_of_effort_fast_become_smaller(reg: Registry, hub: OldHub) -> None:
    before = stored(reg, hub)
    assert {before["ann/sent"][name].codec for name in MATRICES} == {"zstd"}
    outcome = recompress_all(reg)
    after = stored(reg, hub)
    for name in MATRICES:
        assert after["ann/sent"][name].codec == "fm_delta"
        assert after["ann/sent"][name].bases == {after["ann/base"][name].id}
        assert after["ann/sent"][name].stored_bytes < 0.5 * before["ann/sent"][name].stored_bytes
        assert after["ann/tune"][name].stored_bytes < 0.9 * before["ann/tune"][name].stored_bytes
        assert after["ann/tune"][name].bases == before["ann/tune"][name].bases
    assert after["ann/base"] == before["ann/base"], "nothing there could become smaller"
    saved = sum(t.stored_bytes for model in before.values() for t in model.values())
    saved -= sum(t.stored_bytes for model in after.values() for t in model.values())
    assert outcome.replanned == 2
    assert outcome.replaced >= 2
    assert outcome.saved_bytes >= saved > 0
    check(reg, hub)
    collect(reg)
    collect(reg)
    check(reg, hub)


def test_a_plan_counts_by_codec_version_and_effort_and_changes_nothing(
    reg: Registry, hub: OldHub
) -> None:
    before = rows(reg), sorted(reg.store.list(""), key=lambda item: item.key)
    planned = plan(reg)
    frames = {(group.codec, group.version, group.effort): group.frames for group in planned.groups}
    assert frames["fm_delta", 1, "fast"] == 2
    assert frames["zstd", 1, ""] == 2
    assert set(frames) <= {("fm_delta", 1, "fast"), ("zstd", 1, ""), ("raw", 1, "")}
    assert planned.total_bytes >= 4 * 128 * 192 * 2
    assert planned.up_to_date.frames > 2, "no effort makes what stands alone smaller"
    assert (rows(reg), sorted(reg.store.list(""), key=lambda item: item.key)) == before
    shown = run("--data-dir", str(reg.data_dir))
    assert shown.exit_code == 0, shown.output
    assert "fm_delta version 1, effort fast: 2 frames" in shown.stdout
    assert "nothing was changed" in shown.stdout
    assert (rows(reg), sorted(reg.store.list(""), key=lambda item: item.key)) == before


def test_a_second_run_finds_nothing_to_look_at(reg: Registry, hub: OldHub) -> None:
    with reg.db.write() as session:  # as an older release leaves them
        session.execute(update(Frame).values(tried=0))
    assert recompress_all(reg).not_smaller > 0
    before = rows(reg), len(list(reg.store.list("")))
    planned = plan(reg)
    assert (planned.groups, planned.tensors) == ((), {})
    assert planned.up_to_date.frames > 6
    assert apply_recompress(reg, FileReader(reg), planned) == Outcome()
    assert (rows(reg), len(list(reg.store.list("")))) == before


def test_what_the_hub_writes_itself_is_up_to_date_at_its_effort(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        push_ingested(reg, ann, "ann/base", {PATH: FILES["ann/base"], "notes.txt": b"n" * 5000})
        push_ingested(reg, ann, "ann/tune", {PATH: FILES["ann/tune"]}, base="ann/base")
        assert plan(reg).tensors == {}
    with opened_registry(tmp_path, codec_effort="fast") as reg:
        assert plan(reg).tensors == {}
    with opened_registry(tmp_path, codec_effort="max") as reg:
        assert len(plan(reg).tensors) == 2, "what stands alone cannot become smaller"
        assert recompress_all(reg).replanned == 0
        assert plan(reg).tensors == {}


def test_numbers_of_a_shorter_dtype_are_coded_anew_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the codec version shows that frames from before fm_delta 2 may become smaller."""
    base, tune = in_f32(model()), in_f32(model(moved=0.05))

    def before(*arguments: Any) -> FmDeltaEncoder:
        return FmDeltaEncoder(*arguments[:-1], False)

    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        push_ingested(reg, ann, "ann/base", {PATH: base})
        with monkeypatch.context() as older:
            older.setattr(codec, "FmDeltaEncoder", before)
            older.setattr(codec, "common_stride", lambda *_: 0)
            made = push_ingested(reg, ann, "ann/tune", {PATH: tune}, base="ann/base")
        with reg.db.write() as session:
            session.execute(update(Frame).values(tried=0))
        old = stored_tensors(reg, made)
        survey = {(group.codec, group.version) for group in plan(reg).groups}
        assert ("fm_delta", 1) in survey
        recompress_all(reg)
        new = stored_tensors(reg, made)
        for name in MATRICES:
            assert new[name].stored_bytes < 0.8 * old[name].stored_bytes
        assert read_file(reg, made, PATH) == tune
        assert list(fsck(reg, read_data=True)) == []
        assert plan(reg).tensors == {}, "frames of version 1 are looked at once"


def test_only_the_named_repository_is_brought_up_to_date(reg: Registry, hub: OldHub) -> None:
    before = stored(reg, hub)
    folder = ("--data-dir", str(reg.data_dir), "--apply", "--repository", "ann/tune")
    done = run(*folder, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["outcome"]["replaced"] == 2
    after = stored(reg, hub)
    assert after["ann/sent"] == before["ann/sent"]
    assert after["ann/tune"] != before["ann/tune"]
    check(reg, hub)
    with reg.db.read() as session:
        untouched = session.scalars(select(Frame.tried).where(Frame.codec == 1)).all()
    assert 0 in untouched, "the client's frames are left for another run"


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [("ann/none", 3, "repository_not_found"), ("no-slash", 2, "invalid_name")],
)
def test_a_name_that_is_no_repository_is_refused(
    reg: Registry, name: str, status: int, code: str
) -> None:
    refused = run("--data-dir", str(reg.data_dir), "--apply", "--repository", name)
    assert refused.exit_code == status
    assert name in refused.stderr
    error = CliRunner().invoke(
        recompress, ["--data-dir", str(reg.data_dir), "--repository", name], standalone_mode=False
    )
    assert getattr(error.exception, "code", None) == code


def test_no_hub_is_made_where_there_is_none(tmp_path: Path) -> None:
    refused = run("--data-dir", str(tmp_path / "nothing"), "--apply")
    assert refused.exit_code == 2
    assert "there is no hub" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_one_at_a_time_and_none_beside_a_gc_that_waits_for_no_reader(reg: Registry) -> None:
    folder = ("--data-dir", str(reg.data_dir))
    with DataFolderLock(reg.data_dir, RECOMPRESS_LOCK, RECOMPRESS):
        refused = run(*folder, "--apply")
        assert refused.exit_code == 3
        assert f"process {os.getpid()}, `deltahub recompress`" in refused.stderr
        assert run(*folder).exit_code == 0, "a plan touches nothing"
        collected = run(*folder, "--apply", "--lease", "0", of=gc)
        assert collected.exit_code == 3
        assert "`deltahub recompress` is at work" in collected.stderr
        assert run(*folder, "--apply", of=gc).exit_code == 0


def make_unreadable(reg: Registry, tensor_id: int) -> None:
    """Give the tensor's frame a codec version that only a newer release reads."""
    with reg.db.read() as session:
        frame = session.scalars(select(Frame).where(Frame.tensor_id == tensor_id)).one()
    path = reg.data_dir / "objects" / pack_key(frame.pack_id)
    data = bytearray(path.read_bytes())
    end = frame.offset + frame.length
    data[frame.offset : end] = forge_header(
        bytes(data[frame.offset : end]), codec=2, codec_version=9
    )
    path.chmod(0o600)
    path.write_bytes(data)
    with reg.db.write() as session:
        session.execute(update(Frame).where(Frame.tensor_id == tensor_id).values(tried=0))


def test_frames_that_this_release_cannot_read_are_named_and_left_and_the_rest_is_done(
    reg: Registry, hub: OldHub
) -> None:
    before = stored(reg, hub)
    make_unreadable(reg, before["ann/base"]["a.weight"].id)
    done = run("--data-dir", str(reg.data_dir), "--apply", "--json")
    assert done.exit_code == 1, done.output
    data = json.loads(done.stdout)
    named = {each["repository"]: each for each in data["plan"]["unreadable"]}
    assert named.keys() == {"ann/base", "ann/tune"}
    assert named["ann/base"]["tensors"] == ["a.weight"]
    assert named["ann/base"]["path"] == PATH
    assert named["ann/base"]["reason"] == "fm_delta version 9"
    assert named["ann/tune"]["reason"] == "a difference from a tensor in fm_delta version 9"
    assert data["outcome"]["failed"] == []
    after = stored(reg, hub)
    assert after["ann/base"]["a.weight"] == before["ann/base"]["a.weight"]
    assert after["ann/tune"]["a.weight"] == before["ann/tune"]["a.weight"]
    assert after["ann/tune"]["b.weight"].stored_bytes < before["ann/tune"]["b.weight"].stored_bytes
    assert after["ann/sent"]["b.weight"].codec == "fm_delta"
    assert after["ann/sent"]["a.weight"].codec == "neuzip_lossless", "its base cannot be read"
    assert read_file(reg, hub.revisions["ann/sent"], PATH) == FILES["ann/sent"]
    again = run("--data-dir", str(reg.data_dir), "--apply")
    assert again.exit_code == 1
    assert "cannot be read: ann/base, model.safetensors: 1 tensor (fm_delta version 9)" in (
        again.stdout
    )
    assert "pushed again" in again.stdout
    ann = caller(reg, "ann")
    for name in ("ann/base", "ann/tune"):
        delete_repository(reg, ann, name)
    collect(reg)
    collect(reg)
    anew = push_ingested(reg, ann, "ann/base", {PATH: FILES["ann/base"]})
    assert read_file(reg, anew, PATH) == FILES["ann/base"]
    assert plan(reg).unreadable == ()
    assert list(fsck(reg)) == []


def test_damage_is_reported_and_the_rest_is_done(reg: Registry, hub: OldHub) -> None:
    damaged = stored_tensors(reg, hub.revisions["ann/tune"])["a.weight"].id
    with reg.db.read() as session:
        frame = session.scalars(select(Frame).where(Frame.tensor_id == damaged)).one()
    path = reg.data_dir / "objects" / pack_key(frame.pack_id)
    data = bytearray(path.read_bytes())
    data[frame.offset + frame.length - 3] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    outcome = recompress_all(reg)
    (failed,) = outcome.failed
    assert (failed.repository, failed.tensors) == ("ann/tune", ("a.weight",))
    assert "fsck" in failed.reason
    assert outcome.replaced >= 1
    with reg.db.read() as session:
        assert session.get_one(Tensor, damaged).lost == "frames"


def test_a_client_s_frames_that_stay_are_still_the_client_s(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        push_ingested(reg, ann, "ann/open", {"x": b"x"}, private=True)
        base = weights(1 << 20)
        tuned = near(base)
        alone = frames_of(tuned, max_bytes=1 << 20)
        deltas = frames_of(tuned, base, max_bytes=1 << 20)
        send_pack(reg, ann, "ann/open", frames_of(base))
        send_pack(reg, ann, "ann/open", [alone[0], deltas[1]])
        outcome = recompress_all(reg)
        assert outcome.replaced == 2
        with reg.db.read() as session:
            foreign = {
                row.size: row.is_foreign
                for row in session.scalars(select(Tensor).where(Tensor.depth == 1))
            }
        assert foreign == {len(tuned): True}
        assert plan(reg).tensors == {}
        assert list(fsck(reg, read_data=True)) == []
