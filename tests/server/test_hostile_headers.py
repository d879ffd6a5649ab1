"""Files with a wrong safetensors header are kept as opaque files, and `info` names the fault.

A hub accepts any file. A wrong header only means that the file is not stored as tensors.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.models.hostile_headers import DATA, GOOD, HOSTILE, head_of
from support.service.hub import RunningHub, running_hub

NAME = "admin/hostile"


def files() -> dict[str, tuple[bytes, str]]:
    """path -> (contents, a pattern that the note of `info` must match)."""
    made = {
        fault: (head_of(doc) + os.urandom(DATA), word) for fault, (doc, word) in HOSTILE.items()
    }
    good = head_of({"a": GOOD})
    made |= {
        "a header of 2^64 bytes": (b"\xff" * 8 + b"{}" + os.urandom(DATA), "100000000"),
        "a header longer than its file": (good[:-10], "longer than the file|header"),
        "data cut off": (good + os.urandom(23), "the file at"),
        "seven bytes": (b"\x02" * 7, "no safetensors header"),
        "no bytes": (b"", "no safetensors header"),
        "another format": (b"PK\x03\x04" + os.urandom(3000), "."),
    }
    return {f"{fault.replace(' ', '-')}.safetensors": each for fault, each in made.items()}


FILES = files()


@pytest.fixture(scope="module")
def reports(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[RunningHub, dict[str, dict[str, Any]]]]:
    """(a hub that has ingested all these files, path -> the file's report of info)."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    with running_hub(folder / "data", with_worker=True) as hub:
        hub.create(NAME)
        made = hub.commit(NAME, {path: data for path, (data, _) in FILES.items()})
        job = hub.wait_for_job(made["job_id"])
        assert (job["state"], job["error"]) == ("done", None)
        found = hub.call("GET", f"/v1/repositories/{NAME}/info").json()
        yield hub, {file["path"]: file for file in found["files"]}


@pytest.mark.parametrize("path", list(FILES))
def test_info_names_the_fault_and_the_file_comes_back(
    reports: tuple[RunningHub, dict[str, dict[str, Any]]], path: str
) -> None:
    hub, infos = reports
    data, word = FILES[path]
    file = infos[path]
    assert (file["state"], file["kind"], file["size"]) == ("ingested", "opaque", len(data))
    assert re.search(word, file["note"]), file["note"]
    assert len(file["note"]) < 500
    assert [tensor["name"] for tensor in file["tensors"] if tensor["name"]] == []
    answer = hub.call("GET", f"/v1/repositories/{NAME}/files/{path}")
    assert (answer.status, answer.body == data) == (200, True)


def test_a_header_of_more_than_100_mb_is_not_read(
    reports: tuple[RunningHub, dict[str, dict[str, Any]]],
) -> None:
    hub = reports[0]
    size = 100_000_001
    data = size.to_bytes(8, "little") + b" " * size
    hub.create("admin/huge")
    made = hub.commit("admin/huge", {"model.safetensors": data})
    assert hub.wait_for_job(made["job_id"])["state"] == "done"
    (file,) = hub.call("GET", "/v1/repositories/admin/huge/info").json()["files"]
    assert (file["kind"], file["size"]) == ("opaque", len(data))
    assert "100000000" in file["note"]
    assert hub.call("GET", "/v1/repositories/admin/huge/files/model.safetensors").body == data


def test_faults_are_told_apart(
    reports: tuple[RunningHub, dict[str, dict[str, Any]]],
) -> None:
    notes = {file["note"] for file in reports[1].values()}
    assert len(notes) > len(FILES) / 2
