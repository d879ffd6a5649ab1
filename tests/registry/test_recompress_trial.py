"""A store from before fm_delta version 1 is read as it is, and then brought up to date."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from deltahub.codecs import DType, FrameView, tensor_id
from deltahub.registry import Registry
from deltahub.registry.errors import InvalidFrame
from deltahub.registry.fsck import fsck
from deltahub.registry.recompress import plan_recompress
from deltahub.registry.recompress_command import recompress as command
from support.client_packs import send_pack
from support.collecting import collect
from support.deltas import fine_tune, one_row
from support.fm_delta_trial import frame_of, trial
from support.ingested import push_ingested, read_file, stored_tensors
from support.registry import caller, ensure_repository, opened_registry
from support.trial_store import (
    FILES,
    PATH,
    REVISIONS,
    digest_of,
    stored_frames,
    trial_frames,
    unpack_trial_store,
)


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    unpack_trial_store(tmp_path)
    with opened_registry(tmp_path) as registry:
        yield registry


def assert_files_are_whole(reg: Registry) -> None:
    for name, sha256 in FILES.items():
        assert digest_of(read_file(reg, REVISIONS[name], PATH)) == sha256, name
    assert list(fsck(reg, read_data=True)) == []


def test_every_file_is_read_as_it_was_pushed(reg: Registry) -> None:
    assert len(trial_frames(reg)) == 7
    depths = {
        tensor.depth for row in REVISIONS.values() for tensor in stored_tensors(reg, row).values()
    }
    assert depths == {0, 1, 2}
    assert any(h.base is not None and h.base.is_cast for h, _ in stored_frames(reg))
    assert_files_are_whole(reg)


def test_recompress_codes_every_frame_of_version_0_anew(reg: Registry) -> None:
    old = {name: stored_tensors(reg, row) for name, row in REVISIONS.items()}
    plan = plan_recompress(reg)
    groups = {(group.codec, group.version): group.frames for group in plan.groups}
    assert groups["fm_delta", 0] == 7
    assert plan.unreadable == ()
    done = CliRunner().invoke(command, ["--data-dir", str(reg.data_dir), "--apply", "--json"])
    assert done.exit_code == 0, done.output
    outcome = json.loads(done.stdout)["outcome"]
    assert outcome["replaced"] >= 7
    assert outcome["failed"] == []
    assert trial_frames(reg) == []
    assert {header.codec_version for header, _ in stored_frames(reg)} <= {1, 2}
    assert_files_are_whole(reg)
    new = {name: stored_tensors(reg, row) for name, row in REVISIONS.items()}
    assert any(
        new[name][tensor].stored_bytes > was.stored_bytes
        for name, tensors in old.items()
        for tensor, was in tensors.items()
    ), "small tensors took a little less by version 0, which is no reason to keep it"
    again = plan_recompress(reg)
    assert (again.groups, again.tensors, again.unreadable) == ((), {}, ())
    collect(reg)
    collect(reg)
    assert_files_are_whole(reg)


def test_a_fine_tune_of_what_version_0_holds_is_coded_by_today_s(reg: Registry) -> None:
    ann = caller(reg, "ann")
    data = bytearray(read_file(reg, REVISIONS["ann/further"], PATH))
    data[-2] ^= 1
    revision = push_ingested(reg, ann, "ann/next", {PATH: bytes(data)}, base="ann/further")
    assert {t.codec for t in stored_tensors(reg, revision).values()} >= {"fm_delta"}
    assert len(trial_frames(reg)) == 7
    assert read_file(reg, revision, PATH) == data


@pytest.mark.parametrize("is_private", [True, False])
def test_no_client_sends_frames_of_version_0(reg: Registry, is_private: bool) -> None:
    ann = caller(reg, "ann")
    ensure_repository(reg, ann, "ann/sent", private=is_private)
    case = trial(one_row(DType.BF16, 4000), *fine_tune(DType.BF16, 4000))
    frame = frame_of(case)
    assert FrameView.parse(frame).header.tensor == tensor_id(case.source)
    for frames in ([frame], trial_frames(reg)[:1]):
        with pytest.raises(InvalidFrame, match=r"fm_delta version 0.*newer client"):
            send_pack(reg, ann, "ann/sent", frames)
