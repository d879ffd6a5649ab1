"""What the hub refuses, and whether a user of each client can read why."""

from hashlib import sha256

import pytest

from clients.conftest import World
from clients.machine import Machine

CREATE = """
from huggingface_hub import HfApi
HfApi().create_repo(name, private=private)
result = HfApi().upload_file(
    repo_id=name, path_or_fileobj=b"first", path_in_repo="first.txt"
).oid
"""
UPLOAD = """
from huggingface_hub import HfApi
HfApi().upload_file(repo_id=name, path_or_fileobj=b"more", path_in_repo=path, **options)
"""
# As if something on the way to the hub had gone wrong: the client believes what it says.
LARGE = """
from huggingface_hub import CommitOperationAdd, HfApi
api = HfApi()
operation = CommitOperationAdd("weights.bin", name.encode() * 100)
if wrong == "nothing sent":
    operation._upload_mode, operation._is_uploaded = "lfs", True
elif wrong == "hash":
    operation.upload_info.sha256 = bytes(32)
elif wrong == "size":
    operation.upload_info.size = 900
result = api.create_commit(name, [operation], commit_message="Large")
"""
AT_ONCE = """
from huggingface_hub import CommitOperationAdd, HfApi
from threading import Barrier, Thread
api = HfApi()
start = Barrier(2)
results = {}
def commit(i, parent):
    operation = CommitOperationAdd(f"{label}-{i}.txt", b"x")
    start.wait()
    def call():
        results[i] = api.create_commit(
            name, [operation], commit_message=f"{label} {i}", parent_commit=parent
        ).oid
    error = caught(call)
    if error:
        results[i] = error
threads = [Thread(target=commit, args=(i, parent)) for i in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
result = [results[0], results[1]]
"""


@pytest.fixture
def first(uploader: Machine, name: str) -> str:
    """The commit of a repository that has just been made."""
    commit: str = uploader.run(CREATE, name=name, private=False)
    return commit


def test_a_commit_on_what_is_no_longer_the_head_is_refused(
    uploader: Machine, first: str, name: str, world: World
) -> None:
    uploader.run(UPLOAD, name=name, path="second.txt", options={})
    options = {"parent_commit": first}
    failed = uploader.refused(UPLOAD, name=name, path="third.txt", options=options)
    assert "HfHubHTTPError" in failed.kinds
    assert "412" in failed.text
    assert "main" in failed.output
    assert first[:8] in failed.output, failed.output
    assert "third.txt" not in world.hashes(name)


def test_of_two_commits_at_once_none_is_lost(
    uploader: Machine, first: str, name: str, world: World
) -> None:
    both = uploader.run(AT_ONCE, name=name, label="free", parent=None)
    assert all(isinstance(one, str) for one in both), both
    assert {"free-0.txt", "free-1.txt"} <= set(world.hashes(name))
    head = world.hub.call("GET", f"/v1/repositories/{name}/revision", token=world.alice).json()
    one, other = uploader.run(AT_ONCE, name=name, label="bound", parent=head["commit"])
    refused = one if isinstance(one, dict) else other
    assert {type(one), type(other)} == {str, dict}
    assert "412" in refused["text"]


def test_who_may_not_write_is_told_so(
    uploader: Machine, first: str, name: str, world: World
) -> None:
    reader = uploader.another(token=world.alice_reads)
    failed = reader.refused(UPLOAD, name=name, path="no.txt", options={})
    assert "403" in failed.text
    assert "scope" in failed.output, failed.output
    stranger = uploader.another(token=world.bob)
    failed = stranger.refused(UPLOAD, name=name, path="no.txt", options={})
    assert "403" in failed.text
    assert "bob" in failed.output, failed.output
    nobody = uploader.another(token=None)
    failed = nobody.refused(UPLOAD, name=name, path="no.txt", options={})
    assert "401" in failed.text
    unknown = uploader.another(token="dh_nonsense")
    failed = unknown.refused(UPLOAD, name=name, path="no.txt", options={})
    assert "401" in failed.text
    assert "not known" in failed.output, failed.output
    assert set(world.hashes(name)) == {"first.txt"}


def test_large_files_that_are_not_what_was_said_are_refused(
    uploader: Machine, first: str, name: str, world: World
) -> None:
    failed = uploader.refused(LARGE, name=name, wrong="nothing sent")
    assert sha256(name.encode() * 100).hexdigest()[:12] in failed.output, failed.output
    failed = uploader.refused(LARGE, name=name, wrong="hash")
    assert "0" * 12 in failed.output, failed.output
    failed = uploader.refused(LARGE, name=name, wrong="size")
    assert "900" in failed.output, failed.output
    assert set(world.hashes(name)) == {"first.txt"}
    uploader.run(LARGE, name=name, wrong="nothing")
    assert set(world.hashes(name)) == {"first.txt", "weights.bin"}


def test_a_card_that_cannot_be_read_is_refused_before_it_is_sent(
    uploader: Machine, first: str, name: str, world: World
) -> None:
    script = """
    from huggingface_hub import HfApi
    HfApi().upload_file(
        repo_id=name, path_or_fileobj=b"---\\nlicense: [mit\\n---\\n", path_in_repo="README.md"
    )
    """
    failed = uploader.refused(script, name=name)
    assert "YAML" in failed.output, failed.output
    assert "line 2" in failed.output, failed.output
    assert set(world.hashes(name)) == {"first.txt"}


def test_a_path_that_no_repository_may_have_is_refused(
    uploader: Machine, first: str, name: str
) -> None:
    failed = uploader.refused(UPLOAD, name=name, path="a/.git/config", options={})
    assert ".git" in failed.output, failed.output


def test_a_commit_to_a_branch_that_is_not_there_is_refused(
    uploader: Machine, first: str, name: str
) -> None:
    options = {"revision": "no/branch"}
    failed = uploader.refused(UPLOAD, name=name, path="no.txt", options=options)
    assert "RevisionNotFoundError" in failed.kinds, failed.output


def test_a_pull_request_is_refused_with_a_way_out(uploader: Machine, first: str, name: str) -> None:
    options = {"create_pr": True}
    failed = uploader.refused(UPLOAD, name=name, path="no.txt", options=options)
    assert "501" in failed.text
    assert "commit to a branch" in failed.output, failed.output
