"""fsck checks trees, goes page by page, and on from where a run before was."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from deltahub.registry import Registry
from deltahub.registry.catalog.trees import write
from deltahub.registry.commands import maintenance
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.maintenance.fsck import bytes as fsck_bytes
from deltahub.registry.maintenance.fsck import cursor, frames, trees
from deltahub.registry.maintenance.fsck.run import fsck
from support.models import tiny_models as tiny
from support.registry.collecting import codes, sql
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry

A_PATH = "(SELECT min(path) FROM tree_entries)"
A_LEAF = "(SELECT max(node_id) FROM tree_entries)"
A_GROUP = "(SELECT max(child_id) FROM tree_links WHERE parent_id = tree_id)"
IN_TOP = "bound <> '' AND parent_id IN (SELECT tree_id FROM revisions)"
FILES = {f"{n}.txt": b"%d" % n for n in range(12)}


@pytest.fixture
def reg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    for module, name in (
        (trees, "_PAGE"), (frames, "_TENSORS"), (frames, "_PACKS"), (fsck_bytes, "PAGE"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 2)
    monkeypatch.setattr(cursor, "_SAVE_S", 0)
    monkeypatch.setattr(write, "MAX_ITEMS", 2)
    with opened_registry(tmp_path) as registry:
        ann = caller(registry, "ann")
        push_ingested(registry, ann, "ann/m", {"model.safetensors": tiny.to_file(tiny.base())})
        push_ingested(registry, ann, "ann/files", FILES)
        yield registry


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("UPDATE repositories SET head_id = head_id + 1", "head_wrong"),
        ("UPDATE tree_links SET n_files = n_files + 1", "tree_wrong"),
        ("UPDATE tree_links SET id_sum = zeroblob(20)", "tree_wrong"),
        ("UPDATE tree_links SET marks = marks | 2", "tree_wrong"),
        (f"UPDATE tree_links SET bound = 'zz' WHERE child_id = {A_LEAF}", "tree_wrong"),
        ("UPDATE revisions SET tree_id = (SELECT max(id) FROM tree_nodes)", "tree_wrong"),
        ("UPDATE revisions SET tree_id = 999", "tree_wrong"),
        (f"UPDATE revisions SET tree_id = {A_GROUP}", "tree_wrong"),
        (f"UPDATE tree_links SET bound = bound || 'x' WHERE {IN_TOP}", "tree_wrong"),
        (f"UPDATE tree_links SET child_id = {A_LEAF} WHERE {IN_TOP}", "tree_wrong"),
        (f"UPDATE tree_nodes SET repository_id = 1 WHERE id = {A_LEAF}", "tree_wrong"),
        ("INSERT INTO tree_nodes (repository_id) VALUES (1)", "tree_wrong"),
        (f"DELETE FROM tree_entries WHERE path = {A_PATH}", "tree_wrong"),
        ("UPDATE tree_entries SET path = path || 'x'", "tree_wrong"),
        ("UPDATE frames SET size = size - 1 WHERE tensor_id = 7", "tensor_frames"),
    ],
)
def test_a_fault_is_found_on_whatever_page(reg: Registry, statement: str, code: str) -> None:
    assert codes(reg) == set()
    sql(reg, statement)
    assert code in codes(reg)


def test_a_run_goes_on_where_the_one_before_ended(reg: Registry, tmp_path: Path) -> None:
    place = tmp_path / "place.json"
    sql(
        reg,
        "UPDATE tree_links SET marks = marks | 2",
        "UPDATE packs SET hash = zeroblob(32)",
    )
    whole = list(fsck(reg, read_data=True))
    assert {finding.code for finding in whole} >= {"tree_wrong", "pack_hash"}
    for n_read in range(1, len(whole) + 1):
        stages: list[str] = []
        first = fsck(reg, read_data=True, resumed=place)
        seen = [next(first) for _ in range(n_read)]
        first.close()  # as if the process were killed now
        assert place.exists()
        found = list(fsck(reg, read_data=True, resumed=place, progress=stages.append))
        assert found == whole
        assert seen == whole[:n_read]
        assert not place.exists()
        # What was done is not done again.
        assert ("values" in stages) == (n_read == 0)


def refused(reg: Registry, place: Path, *, read_data: bool = False) -> str:
    with pytest.raises(InvalidRequest) as error:
        list(fsck(reg, read_data=read_data, resumed=place))
    return str(error.value)


def test_a_file_that_is_no_place_of_this_check_is_refused(reg: Registry, tmp_path: Path) -> None:
    place = tmp_path / "place.json"
    for damaged in ("[]", "{", '{"findings": [], "stage": 1}', "\0"):
        place.write_text(damaged)
        assert "is damaged" in refused(reg, place)
    place.unlink()
    sql(reg, "UPDATE tree_links SET marks = marks | 2")
    run = fsck(reg, resumed=place)
    next(run)
    run.close()
    assert "without --read-data" in refused(reg, place, read_data=True)
    saved = json.loads(place.read_text())
    place.write_text(json.dumps({**saved, "stage": "phases of the moon"}))
    assert "another release" in refused(reg, place)
    place.write_text(json.dumps({**saved, "hub": "0" * 32}))
    assert "another hub" in refused(reg, place)
    assert "delete it, or name another file" in refused(reg, place)
    assert "no folder" in refused(reg, tmp_path / "nowhere" / "place.json")


def test_a_finding_names_files_and_does_not_send_to_fsck(reg: Registry) -> None:
    sql(reg, "UPDATE frames SET offset = offset + 1")
    found = [each for each in fsck(reg, read_data=True) if each.code == "recipe_unreadable"]
    assert found
    for finding in found:
        assert "deltahub fsck" not in finding.line
        assert "(needed by '" in finding.line
        assert len(finding.files) <= 3


def test_the_command_resumes(reg: Registry, tmp_path: Path) -> None:
    place = tmp_path / "place.json"
    given = ["--data-dir", str(reg.data_dir), "--resume", str(place)]
    result = CliRunner().invoke(maintenance.fsck, given)
    assert (result.exit_code, result.stdout) == (0, "clean\n"), result.output
    assert not place.exists()
    given[-1] = str(tmp_path / "nowhere" / "place.json")
    result = CliRunner().invoke(maintenance.fsck, given)
    assert result.exit_code == 2
    assert "there is no folder" in result.output


@pytest.mark.parametrize("option", ["--lease", "--grace", "--revision-grace"])
@pytest.mark.parametrize("value", ["nan", "inf", "1e99", "9" * 21, "-1", "soon"])
def test_a_time_that_is_none_is_refused_in_a_line(reg: Registry, option: str, value: str) -> None:
    given = ["--data-dir", str(reg.data_dir), option, value]
    result = CliRunner().invoke(maintenance.gc, given)
    assert result.exit_code == 2
    assert "is no number of seconds" in result.output
