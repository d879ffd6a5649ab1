"""fsck finds damage by disks, bugs and operators, each under its own code."""

import json
import os
import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import select

from deltahub.codecs.frames import parse_header
from deltahub.registry import Registry, Settings
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.commands import maintenance
from deltahub.registry.data_folder import GC, SERVE, SERVE_LOCK, WORKER_LOCK, DataFolderLock
from deltahub.registry.db.models import Frame, Landing, Pack, Tensor
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import DataLost
from deltahub.registry.maintenance.fsck.findings import CODES, Finding
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.storage.keys import landing_key, pack_key
from support.codecs.frames import forge_header
from support.models import tiny_models as tiny
from support.registry.collecting import codes, sql
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry, upload

PATH = "model.safetensors"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub with a public base, a private fine-tune, opaque files and a waiting upload."""
    folder = tmp_path_factory.mktemp("pristine")
    with opened_registry(folder) as reg:
        ann = caller(reg, "ann")
        base = {PATH: tiny.to_file(tiny.base()), "notes.txt": b"trained at home\n" * 400}
        push_ingested(reg, ann, "ann/base", base)
        tune = {PATH: tiny.to_file(tiny.finetune(1e-5))}
        push_ingested(reg, ann, "ann/tune", tune, base="ann/base", private=True)
        upload(reg, ann, b"waits for its commit" * 300)
    return folder


@pytest.fixture
def reg(pristine: Path, tmp_path: Path) -> Iterator[Registry]:
    shutil.copytree(pristine / "data", tmp_path / "data")
    with opened_registry(tmp_path) as registry:
        yield registry


def a_pack(reg: Registry) -> tuple[str, int]:
    """(id, bytes) of the largest pack."""
    with reg.db.read() as session:
        pack = session.scalars(select(Pack).order_by(Pack.size.desc())).first()
    assert pack is not None
    return pack.id, pack.size


def contents(reg: Registry, key: str) -> bytearray:
    data = bytearray(reg.store.size(key))
    reg.store.get_into(key, 0, memoryview(data))
    return data


def flip(reg: Registry, key: str, at: int) -> None:
    data = contents(reg, key)
    data[at] ^= 0x10
    reg.store.put(key, [bytes(data)])


def a_landing(reg: Registry) -> str:
    with reg.db.read() as session:
        return landing_key(session.scalars(select(Landing.id)).one())


def test_a_healthy_hub_is_clean(reg: Registry) -> None:
    assert list(fsck(reg, read_data=True)) == []


def test_a_missing_pack_is_found(reg: Registry) -> None:
    reg.store.delete(pack_key(a_pack(reg)[0]))
    assert "pack_missing" in codes(reg)


def test_a_pack_cut_short_is_found(reg: Registry) -> None:
    key = pack_key(a_pack(reg)[0])
    reg.store.put(key, [bytes(contents(reg, key)[:-100])])
    assert {"pack_size", "pack_index"} <= codes(reg)


def test_a_damaged_index_is_found_without_reading_data(reg: Registry) -> None:
    pack, size = a_pack(reg)
    flip(reg, pack_key(pack), size - 60)
    assert "pack_index" in codes(reg)


def test_an_index_that_names_another_tensor_is_found(reg: Registry) -> None:
    pack, size = a_pack(reg)
    with reg.db.read() as session:
        n_frames = len(session.scalars(select(Frame.start).where(Frame.pack_id == pack)).all())
    flip(reg, pack_key(pack), size - 52 - n_frames * 48 + 20)
    assert codes(reg) == {"pack_index"}


def test_every_flipped_bit_in_a_frame_is_found_by_reading_the_data(reg: Registry) -> None:
    with reg.db.read() as session:
        frame = session.scalars(select(Frame).order_by(Frame.length.desc())).first()
    assert frame is not None
    header = parse_header(contents(reg, pack_key(frame.pack_id))[frame.offset :])
    places = (4, 20, header.header_length + 3, header.prefix_length + 1, frame.length - 1)
    for place in places:
        flip(reg, pack_key(frame.pack_id), frame.offset + place)
        found = codes(reg, read_data=True)
        assert {"pack_hash", "tensor_unreadable", "file_unreadable"} <= found, place
        flip(reg, pack_key(frame.pack_id), frame.offset + place)
    assert codes(reg, read_data=True) == set()


def test_a_lost_upload_is_found(reg: Registry) -> None:
    reg.store.delete(a_landing(reg))
    assert codes(reg) == {"landing_missing"}


def test_an_upload_cut_short_is_found(reg: Registry) -> None:
    key = a_landing(reg)
    reg.store.put(key, [bytes(contents(reg, key)[:-1])])
    assert codes(reg) == {"landing_size"}


def test_a_changed_upload_is_found_by_reading_the_data(reg: Registry) -> None:
    flip(reg, a_landing(reg), 10)
    assert codes(reg) == set()
    assert codes(reg, read_data=True) == {"landing_hash"}


def test_an_object_that_no_row_knows_is_found(reg: Registry) -> None:
    reg.store.put("packs/ab/" + "ab" * 16, [b"?"])
    reg.store.put("elsewhere", [b"another's"])  # see test_gc.py
    found = [finding.target for finding in fsck(reg)]
    assert found == ["packs/ab/" + "ab" * 16]


BIGGEST = "(SELECT id FROM tensors ORDER BY size DESC LIMIT 1)"
DELTA = "(SELECT tensor_id FROM tensor_bases ORDER BY tensor_id LIMIT 1)"
A_BASE = "(SELECT base_id FROM tensor_bases ORDER BY tensor_id LIMIT 1)"
A_FILE = "(SELECT id FROM files WHERE kind = 'opaque' LIMIT 1)"
PRIVATE = "(SELECT id FROM domains WHERE key != 'public' LIMIT 1)"

# (change of the rows, expected code, whether to read the data)
ROW_FAULTS: list[tuple[str, str, bool]] = [
    ("UPDATE refs SET revision_id = 999", "ref_dangling", False),
    ("UPDATE refs SET revision_id = (SELECT max(id) FROM revisions)", "ref_dangling", False),
    (f"DELETE FROM files WHERE id = {A_FILE}", "entry_dangling", False),
    (f"UPDATE files SET state = 'proving' WHERE id = {A_FILE}", "entry_dangling", False),
    (f"UPDATE files SET recipe_tensor_id = 999 WHERE id = {A_FILE}", "file_incomplete", False),
    (f"UPDATE files SET state = 'landed' WHERE id = {A_FILE}", "file_incomplete", False),
    (f"DELETE FROM file_tensors WHERE tensor_id = {BIGGEST}", "file_tensors", False),
    (
        f"INSERT INTO file_tensors SELECT {A_FILE}, min(tensor_id) FROM tensor_bases",
        "file_domain",
        False,
    ),
    (
        "DELETE FROM tensors WHERE id NOT IN (SELECT recipe_tensor_id FROM files)"
        f" AND id NOT IN (SELECT base_id FROM tensor_bases) AND id != {BIGGEST}",
        "file_domain",
        False,
    ),
    (f"DELETE FROM frames WHERE tensor_id = {BIGGEST}", "tensor_frames", False),
    (f"UPDATE frames SET size = size - 1 WHERE tensor_id = {BIGGEST}", "tensor_frames", False),
    (f"UPDATE frames SET start = 5 WHERE tensor_id = {BIGGEST}", "tensor_frames", False),
    (f"UPDATE tensors SET size = size + 4 WHERE id = {BIGGEST}", "tensor_frames", False),
    ("UPDATE packs SET state = 'writing'", "frame_pack", False),
    ("UPDATE packs SET state = 'condemned'", "frame_pack", False),
    (f"UPDATE packs SET domain_id = {PRIVATE}", "frame_pack", False),
    ("DELETE FROM packs WHERE id = (SELECT min(pack_id) FROM frames)", "frame_pack", False),
    (f"UPDATE frames SET offset = offset - 1 WHERE tensor_id = {BIGGEST}", "frame_bounds", False),
    (f"UPDATE frames SET length = length * 99 WHERE tensor_id = {BIGGEST}", "frame_bounds", False),
    (f"UPDATE frames SET length = length - 1 WHERE tensor_id = {BIGGEST}", "pack_index", False),
    (f"DELETE FROM tensors WHERE id = {A_BASE}", "base_missing", False),
    (f"UPDATE tensors SET domain_id = {PRIVATE} WHERE id = {A_BASE}", "frame_pack", False),
    (f"UPDATE tensor_bases SET base_id = tensor_id WHERE tensor_id = {DELTA}", "base_cycle", False),
    (f"INSERT INTO tensor_bases VALUES ({A_BASE}, {DELTA})", "base_cycle", False),
    (f"INSERT INTO tensor_bases VALUES ({A_BASE}, {DELTA})", "base_domain", False),
    (f"UPDATE tensors SET depth = 0 WHERE id = {DELTA}", "depth_wrong", False),
    (f"UPDATE tensors SET depth = 1 WHERE id = {A_BASE}", "depth_wrong", False),
    (
        "UPDATE tensors SET depth = depth + 2 WHERE id IN (SELECT tensor_id FROM tensor_bases)",
        "depth_wrong",
        False,
    ),
    (f"DELETE FROM tensor_bases WHERE tensor_id = {DELTA}", "frame_header", True),
    (f"UPDATE frames SET codec = 0 WHERE tensor_id = {DELTA}", "frame_header", True),
    (
        f"UPDATE tensors SET hash = zeroblob(32) WHERE id = {BIGGEST}",
        "tensor_unreadable",
        True,
    ),
    ("UPDATE packs SET hash = zeroblob(32)", "pack_hash", True),
    (
        f"UPDATE files SET sha256 = lower(hex(zeroblob(32))) WHERE id = {A_FILE}",
        "recipe_unreadable",
        False,
    ),
]


@pytest.mark.parametrize(("statement", "code", "read_data"), ROW_FAULTS)
def test_a_fault_in_the_rows_is_found(
    reg: Registry, statement: str, code: str, read_data: bool
) -> None:
    sql(reg, statement)
    assert code in codes(reg, read_data=read_data)


def twins(reg: Registry) -> tuple[Tensor, Tensor]:
    """Two standalone tensors of the same size."""
    with reg.db.read() as session:
        alone = session.scalars(select(Tensor).where(Tensor.depth == 0).order_by(Tensor.id)).all()
    for one, other in combinations(alone, 2):
        if one.size == other.size:
            return one, other
    raise AssertionError("the fixture has no such tensors")


def point_at(reg: Registry, victim: Tensor, other: Tensor) -> Frame:
    """Point the victim's row at the frame of the other tensor; returns that frame."""
    place = f"(SELECT pack_id, offset, length FROM frames WHERE tensor_id = {other.id})"
    sql(
        reg,
        f"UPDATE frames SET (pack_id, offset, length) = {place} WHERE tensor_id = {victim.id}",
    )
    with reg.db.read() as session:
        return session.scalars(select(Frame).where(Frame.tensor_id == victim.id)).one()


@pytest.mark.parametrize("is_warm", [False, True])
def test_another_tensors_frame_is_an_error_and_never_wrong_bytes(
    reg: Registry, is_warm: bool
) -> None:
    """A standalone frame decodes for any tensor, so fsck compares its tensor hash."""
    victim, other = twins(reg)
    point_at(reg, victim, other)
    reader, out = FileReader(reg), bytearray(victim.size)
    if is_warm:
        reader.read_tensor_into(other.id, 0, memoryview(out))
    with pytest.raises(DataLost, match="another frame"):
        reader.read_tensor_into(victim.id, 0, memoryview(out))
    assert {"tensor_unreadable", "file_unreadable"} <= codes(reg, read_data=True)


def test_a_frame_that_lies_about_its_tensor_is_found_by_reading_the_data(reg: Registry) -> None:
    victim, other = twins(reg)
    frame = point_at(reg, victim, other)
    data, end = contents(reg, pack_key(frame.pack_id)), frame.offset + frame.length
    lie = forge_header(bytes(data[frame.offset : end]), tensor=victim.hash)
    data[frame.offset : end] = lie
    reg.store.put(pack_key(frame.pack_id), [bytes(data)])
    assert {"tensor_hash", "file_hash"} <= codes(reg, read_data=True)


def test_a_chain_longer_than_the_setting_is_found(
    pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the two deltas that branches of a merge may have more.
    monkeypatch.setattr("deltahub.registry.maintenance.fsck.run.VIEW_DEPTH", 0)
    settings = Settings(data_dir=pristine / "data", max_depth=0)
    with Registry.open(settings) as reg:
        assert codes(reg) == {"depth_exceeded"}


def test_the_tests_reach_every_code() -> None:
    reached = {code for _, code, _ in ROW_FAULTS} | {
        "pack_missing",
        "pack_size",
        "tensor_unreadable",
        "file_unreadable",
        "tensor_hash",
        "file_hash",
        "landing_missing",
        "landing_size",
        "landing_hash",
        "xorb_missing",  # tests/registry/xet/test_uploads.py
        "xorb_size",
        "xorb_hash",
        "copy_missing",  # test_second_copies.py
        "copy_size",
        "copy_hash",
        "object_unreadable",  # tests/registry/stores/test_away.py
        "unknown_object",
        "depth_exceeded",
        "file_lost",  # test_repair.py
        "tensor_lost",
        "head_wrong",  # test_fsck_pages.py
        "tree_wrong",
        "database_damaged",  # test_fsck_database.py
        "row_reference",
        "row_undecodable",
        "check_stopped",
        "kit_damaged",  # tests/registry/adapters/test_kits.py
    }
    assert reached == set(CODES)


def test_a_finding_needs_a_known_code() -> None:
    with pytest.raises(ValueError, match="no code"):
        Finding("nonsense", "x", "y")


def run(command: click.Command, *arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def test_the_exit_status_says_what_fsck_found(reg: Registry, tmp_path: Path) -> None:
    folder = ["--data-dir", str(reg.data_dir)]
    clean = run(maintenance.fsck, *folder, "--read-data")
    assert (clean.exit_code, clean.stdout) == (0, "clean\n")
    reg.store.put("packs/ab/" + "ab" * 16, [b"?"])
    found = run(maintenance.fsck, *folder, "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["findings"][0]["code"] == "unknown_object"
    missing = run(maintenance.fsck, "--data-dir", str(tmp_path / "nowhere"))
    assert missing.exit_code == 2
    assert f"no hub in the data folder {tmp_path / 'nowhere'}" in missing.stderr
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("command", [maintenance.gc, maintenance.fsck])
def test_no_hub_is_made_where_there_is_none(command: click.Command, tmp_path: Path) -> None:
    refused = run(command, "--data-dir", str(tmp_path))
    assert refused.exit_code == 2
    assert "deltahub serve" in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [SERVE_LOCK, WORKER_LOCK])
def test_gc_with_a_short_lease_wants_the_hub_stopped(reg: Registry, name: str) -> None:
    folder = ["--data-dir", str(reg.data_dir)]
    with DataFolderLock(reg.data_dir, name, SERVE):
        refused = run(maintenance.gc, *folder, "--apply", "--lease", "0")
        assert refused.exit_code == 3
        assert f"process {os.getpid()}, `deltahub serve`" in refused.stderr
        assert "--lease" in refused.stderr
        assert run(maintenance.gc, *folder).exit_code == 0
        assert run(maintenance.gc, *folder, "--lease", "0").exit_code == 0, "a plan touches nothing"
        assert run(maintenance.gc, *folder, "--lease", "3600").exit_code == 0
    assert run(maintenance.gc, *folder, "--apply", "--lease", "0").exit_code == 0


def test_one_of_two_collections_that_want_the_folder_is_told_of_the_other(reg: Registry) -> None:
    with DataFolderLock(reg.data_dir, SERVE_LOCK, GC):
        refused = run(maintenance.gc, "--data-dir", str(reg.data_dir), "--apply", "--lease", "0")
    assert refused.exit_code == 3
    assert "another `deltahub gc`" in refused.stderr
    assert "hub runs" not in refused.stderr


def test_the_gc_command_plans_first_and_acts_when_told(reg: Registry) -> None:
    folder = ["--data-dir", str(reg.data_dir), "--lease", "0", "--grace", "0"]
    delete_repository(reg, caller(reg, "ann"), "ann/tune")
    plan = run(maintenance.gc, *folder)
    assert plan.exit_code == 0
    assert "--apply" in plan.stdout
    before = len(list(reg.store.list("packs/")))
    done = run(maintenance.gc, *folder, "--apply", "--json")
    assert done.exit_code == 0
    outcome = json.loads(done.stdout)["outcome"]
    assert outcome["deleted"] == before - len(list(reg.store.list("packs/"))) > 0
    assert list(fsck(reg, read_data=True)) == []


def test_the_gc_command_refuses_in_doubt(reg: Registry) -> None:
    reg.store.delete(pack_key(a_pack(reg)[0]))
    refused = run(maintenance.gc, "--data-dir", str(reg.data_dir), "--apply")
    assert refused.exit_code == 1
    assert "fsck" in refused.stdout


def test_the_help_names_every_code() -> None:
    text = run(maintenance.fsck, "--help").stdout
    assert all(code in text for code in CODES)
