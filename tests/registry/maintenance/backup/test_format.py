"""Format 1 of a place stays readable: what docs/backup.md says lies there, byte for byte."""

import json
from pathlib import Path

import pytest

from deltahub.registry.maintenance.backup.place import PlaceRefused, opened_to_read
from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.maintenance.backup.snapshot import (
    Entry,
    Finding,
    Part,
    Snapshot,
    SnapshotDamaged,
    entries,
    load,
    put_compressed,
)
from deltahub.registry.settings import Settings
from deltahub.registry.storage.local import FileStore
from support.registry.backing_up import names
from support.registry.small_hub import SmallHub

NAME = "2026-01-31t04-05-06z"
LINES = (
    b'{"key":"landing/0123456789abcdef0123456789abcdef","size":3,"blake3":"' + b"a" * 64 + b'"}\n'
    b'{"key":"packs/01/0123456789abcdef0123456789abcdef","size":9,"blake3":"","state":"missing"}\n'
)
RECORD = {
    "format": 1, "name": NAME, "hub": "h" * 32, "taken_at": "2026-01-31T04:05:06+00:00",
    "release": "0.2.0", "schema": "0003",
    "database": {"name": "database.sqlite3.zst", "size": 5, "sha256": "c" * 64},
    "n_objects": 2, "n_bytes": 12,
    "findings": [
        {"code": "object_missing", "target": "packs/01/0123456789abcdef0123456789abcdef",
         "text": "gone", "files": ["'a.bin' of ann/m"], "n_files": 1},
    ],
}  # fmt: skip


def write_place(folder: Path, **more: object) -> None:
    store = FileStore(folder)
    (folder / "lines").write_bytes(LINES)
    part = put_compressed(store, f"snapshots/{NAME}/manifest.zst", folder / "lines")
    record = {**RECORD, "manifest": part.__dict__, **more}
    store.put("deltahub-backup.json", [json.dumps({"format": 1, "hub": "h" * 32}).encode()])
    store.put(f"snapshots/{NAME}/snapshot.json", [json.dumps(record).encode()])


def test_a_place_of_format_1_is_read(tmp_path: Path) -> None:
    write_place(tmp_path / "place")
    with opened_to_read(str(tmp_path / "place"), Settings()) as place:
        snapshot = load(place)
        found = [*entries(place, snapshot)]
    assert place.hub == "h" * 32
    assert snapshot == Snapshot(
        NAME, "h" * 32, "2026-01-31T04:05:06+00:00", "0.2.0", "0003",
        Part("database.sqlite3.zst", 5, "c" * 64), snapshot.manifest, 2, 12,
        (Finding("object_missing", found[1].key, "gone", ("'a.bin' of ann/m",), 1),),
    )  # fmt: skip
    assert found == [
        Entry("landing/0123456789abcdef0123456789abcdef", 3, "a" * 64),
        Entry("packs/01/0123456789abcdef0123456789abcdef", 9, "", "missing"),
    ]
    assert b"".join(entry.line() for entry in found) == LINES
    assert json.loads(snapshot.as_json()) == {**RECORD, "manifest": snapshot.manifest.__dict__}


@pytest.mark.parametrize("more", [{"format": 2}, {"name": "2026-01-31t04-05-07z"}, {"size": 1}])
def test_another_record_is_refused(tmp_path: Path, more: dict[str, object]) -> None:
    write_place(tmp_path / "place", **more)
    with (
        opened_to_read(str(tmp_path / "place"), Settings()) as place,
        pytest.raises((SnapshotDamaged, PlaceRefused)),
    ):
        load(place)


def test_a_place_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    write_place(tmp_path / "place")
    (tmp_path / "place/deltahub-backup.json").write_text('{"format": 2, "hub": "x"}')
    with pytest.raises(PlaceRefused, match="format 2"):
        names(tmp_path / "place")


def test_a_place_holds_what_the_page_says(hub: SmallHub, tmp_path: Path) -> None:
    place = tmp_path / "place"
    backup(hub.reg, str(place))
    files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    (name,) = names(place)
    objects = {f"objects/{item.key}" for item in hub.reg.store.list("")}
    parts = ("database.sqlite3.zst", "manifest.zst", "snapshot.json")
    own = {"deltahub-backup.json", "backup.lock", *(f"snapshots/{name}/{part}" for part in parts)}
    assert files == objects | own
