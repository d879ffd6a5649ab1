"""No door takes a path that a pull could not write safely; what is stored under one can be read
and deleted.
"""

import uuid
from collections.abc import Callable

import pytest
from sqlalchemy import update

from deltahub.registry.access.caller import Caller
from deltahub.registry.catalog.commit import AddFile, CopyFile, commit
from deltahub.registry.db.tables.trees import TreeEntry
from deltahub.registry.errors import InvalidPath
from support.service.hf_door import create_model, files_of, header, large, send_commit, small
from support.service.hub import Answer, RunningHub

# One of each kind. The table of all cases is the test of the rule itself.
UNSAFE = (".git/config", "git~1/config", ".g\u200cit/config", "con", "a.", "a:b", "a\u202eb",
          "../x", "/x", "a\\b", "a\x1b[2Jb", "a//b", ".hg/hgrc")  # fmt: skip
ODD = "notes.git:old. "


@pytest.fixture
def name(hub: RunningHub) -> str:
    name = f"admin/{uuid.uuid4().hex}"
    assert create_model(hub, name).status == 200
    return name


def by_our_api(hub: RunningHub, name: str, path: str) -> Answer:
    operation = {"op": "add", "path": path, "sha256": hub.upload(b"evil"), "size": 4}
    body = {"operations": [operation]}
    where = f"/v1/repositories/{name}/commits"
    return hub.call("POST", where, token=hub.admin_token, body=body)


def by_a_small_file(hub: RunningHub, name: str, path: str) -> Answer:
    return send_commit(hub, name, header(), small(path, b"evil"))


def by_a_large_file(hub: RunningHub, name: str, path: str) -> Answer:
    """As Git LFS and Xet clients end an upload."""
    hub.upload(b"evil")
    return send_commit(hub, name, header(), large(path, b"evil"))


def by_a_copy(hub: RunningHub, name: str, path: str) -> Answer:
    sha256 = hub.upload(b"evil")
    copy = "lfsFile", {"path": path, "algo": "sha256", "oid": sha256}
    return send_commit(hub, name, header(), copy)


def by_a_question_before_the_upload(hub: RunningHub, name: str, path: str) -> Answer:
    body = {"files": [{"path": path, "size": 4, "sample": ""}]}
    where = f"/api/models/{name}/preupload/main"
    return hub.call("POST", where, token=hub.admin_token, body=body)


@pytest.mark.parametrize("path", UNSAFE)
@pytest.mark.parametrize(
    "door",
    [
        by_our_api, by_a_small_file, by_a_large_file, by_a_copy, by_a_question_before_the_upload,
    ],
)  # fmt: skip
def test_no_door_takes_an_unsafe_path(
    hub: RunningHub, name: str, door: Callable[[RunningHub, str, str], Answer], path: str
) -> None:
    before = files_of(hub, name)
    answer = door(hub, name, path)
    assert answer.status == 422, answer.body
    assert "the path" in str(answer.json()["error"])
    assert files_of(hub, name) == before


def test_a_mirror_that_names_its_own_commit_ids_is_refused_too(hub: RunningHub, name: str) -> None:
    admin = Caller(1, "admin", True, "admin")
    sha256 = hub.upload(b"evil")
    for operation in (AddFile(".git/config", sha256, 4), CopyFile(".git/config", sha256)):
        with pytest.raises(InvalidPath, match="version control"):
            commit(hub.registry, admin, name, "main", [operation], commit_id="a" * 40)


@pytest.mark.parametrize("is_hf", [False, True])
def test_a_tree_that_git_takes_for_a_repository_is_refused(
    hub: RunningHub, name: str, is_hf: bool
) -> None:
    files = {path: b"x" for path in ("HEAD", "config", "objects/x", "refs/x")}
    if is_hf:
        answer = send_commit(hub, name, header(), *(small(*item) for item in files.items()))
    else:
        operations = [
            {"op": "add", "path": path, "sha256": hub.upload(data), "size": len(data)}
            for path, data in files.items()
        ]
        where = f"/v1/repositories/{name}/commits"
        answer = hub.call("POST", where, token=hub.admin_token, body={"operations": operations})
    assert answer.status == 422
    assert "look like a git repository" in str(answer.json()["error"])


def test_files_that_differ_only_by_case_are_taken(hub: RunningHub, name: str) -> None:
    hub.commit(name, {"README.md": b"one", "readme.md": b"other"})
    found = files_of(hub, name)
    assert (found["README.md"], found["readme.md"]) == (b"one", b"other")


@pytest.fixture
def odd(hub: RunningHub, name: str) -> str:
    """A repository with a file that was stored before the rule was."""
    hub.commit(name, {"placeholder": b"0123456789", "kept.txt": b"kept"})
    with hub.registry.db.write() as session:
        session.execute(update(TreeEntry).where(TreeEntry.path == "placeholder").values(path=ODD))
    return name


def test_what_is_stored_under_an_odd_path_is_read_by_ranges(hub: RunningHub, odd: str) -> None:
    escaped = ODD.replace(" ", "%20")
    for where in (f"/v1/repositories/{odd}/files/{escaped}", f"/{odd}/resolve/main/{escaped}"):
        answer = hub.call("GET", where, token=hub.admin_token, headers={"Range": "bytes=2-4"})
        assert (answer.status, answer.body) == (206, b"234")


@pytest.mark.parametrize("is_hf", [False, True])
def test_what_is_stored_under_an_odd_path_is_deleted(
    hub: RunningHub, odd: str, is_hf: bool
) -> None:
    hub.commit(odd, {"later.txt": b"other files are still taken"})
    if is_hf:
        answer = send_commit(hub, odd, header(), ("deletedFile", {"path": ODD}))
        assert answer.status == 200, answer.body
    else:
        body = {"operations": [{"op": "delete", "path": ODD}]}
        where = f"/v1/repositories/{odd}/commits"
        answer = hub.call("POST", where, token=hub.admin_token, body=body)
        assert answer.status == 201, answer.body
    assert ODD not in files_of(hub, odd)
    assert "kept.txt" in files_of(hub, odd)
