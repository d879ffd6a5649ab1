"""What the hub refuses, and whether a user of each client can read why."""

from hashlib import sha256
from typing import Any

import pytest

from clients.conftest import World
from clients.machine import Machine

# Each error as its user would read it below the traceback.
REFUSED = """
from huggingface_hub import HfApi
api = HfApi()
api.create_repo(name)
def upload(path, data=b"data", token=None, **options):
    return HfApi(token=token).upload_file(
        repo_id=name, path_or_fileobj=data, path_in_repo=path, **options
    ).oid
first = upload("first.txt")
upload("second.txt", b"more")
result = {
    "first": first,
    "stale": caught(lambda: upload("third.txt", b"x", parent_commit=first)),
    "reader": caught(lambda: upload("third.txt", token=reader)),
    "stranger": caught(lambda: upload("third.txt", token=stranger)),
    "nobody": caught(lambda: upload("third.txt", token=False)),
    "unknown": caught(lambda: upload("third.txt", token="dh_nonsense")),
    "card": caught(lambda: upload("README.md", b"---\\nlicense: [mit\\n---\\n")),
    "path": caught(lambda: upload("a/.git/config")),
    "branch": caught(lambda: upload("third.txt", revision="no/branch")),
    "pull request": caught(lambda: upload("third.txt", create_pr=True)),
    "deleted": caught(lambda: api.delete_file("nope.txt", name)),
}
"""
# As if something on the way to the hub had gone wrong: the client believes what it says.
LARGE = """
from huggingface_hub import CommitOperationAdd, HfApi
api = HfApi()
api.create_repo(name)
def operation():
    return CommitOperationAdd("weights.bin", data.encode())
def commit(one):
    return api.create_commit(name, [one], commit_message="Large")
unsent, other, longer = operation(), operation(), operation()
unsent._upload_mode, unsent._is_uploaded = "lfs", True
other.upload_info.sha256 = bytes(32)
longer.upload_info.size = 900
result = {
    "unsent": caught(lambda: commit(unsent)),
    "other": caught(lambda: commit(other)),
    "longer": caught(lambda: commit(longer)),
}
commit(operation())
"""
AT_ONCE = """
from huggingface_hub import CommitOperationAdd, HfApi
from threading import Barrier, Thread
api = HfApi()
api.create_repo(name)
def both(label, parent):
    start, results = Barrier(2), {}
    def commit(i):
        operation = CommitOperationAdd(f"{label}-{i}.txt", b"x")
        start.wait()
        def call():
            results[i] = api.create_commit(
                name, [operation], commit_message=f"{label} {i}", parent_commit=parent
            ).oid
        error = caught(call)
        if error:
            results[i] = error
    threads = [Thread(target=commit, args=(i,)) for i in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return [results[0], results[1]]
result = [both("free", None), both("bound", api.model_info(name).sha)]
"""


def test_a_refusal_names_its_kind_and_says_why(uploader: Machine, name: str, world: World) -> None:
    found: dict[str, Any] = uploader.run(
        REFUSED, name=name, reader=world.alice_reads, stranger=world.bob
    )
    first = found.pop("first")
    words = {
        "stale": ["412", "main", first[:8]],
        "reader": ["403", "scope"],
        "stranger": ["403", "bob"],
        "nobody": ["401", "token"],
        "unknown": ["401", "not known"],
        "card": ["not YAML", "line 3"],
        "path": [".git"],
        "branch": ["no/branch"],
        "pull request": ["501", "commit to a branch"],
        "deleted": ["nope.txt"],
    }
    assert set(found) == set(words)
    for what, error in found.items():
        assert error is not None, what
        for word in words[what]:
            assert word in error["text"], (what, error)
    for what in ("stale", "reader", "stranger", "pull request"):
        assert "HfHubHTTPError" in found[what]["kinds"], found[what]
    assert "RevisionNotFoundError" in found["branch"]["kinds"]
    assert "EntryNotFoundError" in found["deleted"]["kinds"]
    assert set(world.hashes(name)) == {"first.txt", "second.txt"}


def test_large_files_that_are_not_what_was_said_are_refused(
    uploader: Machine, name: str, world: World
) -> None:
    data = name * 100
    found = uploader.run(LARGE, name=name, data=data)
    digest = sha256(data.encode()).hexdigest()
    assert digest[:12] in found["unsent"]["text"]
    assert "404" in found["unsent"]["text"]
    if uploader.sends_by_xet:
        assert "the bytes sent have SHA-256 " in found["other"]["text"]
        # Its bytes have come; the commit then names them with another size.
        assert digest[:12] in found["longer"]["text"]
        assert "900" in found["longer"]["text"]
    else:
        assert "Error while uploading 'weights.bin'" in found["other"]["text"]
        assert "Error while uploading 'weights.bin'" in found["longer"]["text"]
    assert world.hashes(name) == {"weights.bin": digest}


# Why, in the error that the client shows above its own.
@pytest.mark.parametrize("uploader", ["hub-0.34", "newest-by-lfs"], indirect=True)
def test_a_large_file_that_changed_on_its_way_is_explained(uploader: Machine, name: str) -> None:
    script = LARGE.replace("caught(lambda: commit(other))", "commit(other)")
    failed = uploader.refused(script, name=name, data=name * 100)
    assert "0" * 64 in failed.output, failed.output
    assert "422" in failed.output, failed.output


def test_of_two_commits_at_once_none_is_lost(uploader: Machine, name: str, world: World) -> None:
    free, (one, other) = uploader.run(AT_ONCE, name=name)
    assert all(isinstance(each, str) for each in free), free
    assert {"free-0.txt", "free-1.txt"} <= set(world.hashes(name))
    refused, done = (one, other) if isinstance(one, dict) else (other, one)
    assert "412" in refused["text"]
    assert isinstance(done, str), done
