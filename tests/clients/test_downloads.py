"""Single files and snapshots, by every client."""

from hashlib import sha256
from pathlib import Path

import pytest

from clients.conftest import Library, World
from clients.environments import NEWEST
from clients.machine import Machine, hashes
from support.service.hub import RunningHub
from support.service.tcp_proxy import damaging_proxy

FILES = """
from huggingface_hub import hf_hub_download
result = [hf_hub_download(repository, path, revision=revision) for path, revision in wanted]
"""
SNAPSHOT = """
from huggingface_hub import snapshot_download
result = snapshot_download(repository, **options)
"""
PATIENT = """
from huggingface_hub import hf_hub_download
for n_calls in (1, 2):
    try:
        result = n_calls, hf_hub_download(repository, path)
    except Exception as error:
        print(repr(error))
    else:
        break
"""
MISSING = """
from huggingface_hub import (
    file_exists, hf_hub_download, list_repo_files, model_info, repo_exists, snapshot_download
)
result = {
    "exist": [
        repo_exists("gpt2"), file_exists("gpt2", "config.json"),
        repo_exists("alice/nowhere"), repo_exists("alice/tiny", repo_type="dataset"),
    ],
    "name": caught(lambda: hf_hub_download("gpt2", "config.json")),
    "name of files": caught(lambda: list_repo_files("gpt2")),
    "data set": caught(lambda: hf_hub_download("alice/tiny", "x", repo_type="dataset")),
    "space": caught(lambda: snapshot_download("alice/tiny", repo_type="space")),
    "repository": caught(lambda: hf_hub_download("alice/nowhere", "config.json")),
    "namespace": caught(lambda: snapshot_download("nobody/nowhere")),
    "revision": caught(lambda: hf_hub_download("alice/tiny", "config.json", revision="no/pe")),
    "snapshot": caught(lambda: snapshot_download("alice/tiny", revision="nope")),
    "entry": caught(lambda: hf_hub_download("alice/tiny", "nope.json")),
    "private": caught(lambda: hf_hub_download("alice/secret", "config.json")),
    "private info": caught(lambda: model_info("alice/secret")),
}
"""


def sha256_of(path: str) -> str:
    return sha256(Path(path).read_bytes()).hexdigest()


def test_files_of_branches_tags_and_commits_come_whole(machine: Machine, library: Library) -> None:
    first, second, third = library.commits
    expected = {
        ("config.json", None): library.tiny["config.json"],
        ("model.safetensors", "main"): library.tiny["model.safetensors"],
        ("docs/deep/note s.txt", second[:12]): library.tiny["docs/deep/note s.txt"],
        ("config.json", "v1"): library.old_config,
        ("config.json", "refs/tags/v1"): library.old_config,
        ("branch.txt", "dev/x"): b"x",
        ("branch.txt", "refs/heads/dev/x"): b"x",
        ("old.txt", first): library.tiny["old.txt"],
    }
    paths = machine.run(FILES, repository="alice/tiny", wanted=list(expected))
    for path, content in zip(paths, expected.values(), strict=True):
        assert Path(path).read_bytes() == content, path
    snapshots = [path.partition("/snapshots/")[2].partition("/")[0] for path in paths]
    assert snapshots == [second, second, second, first, first, third, third, first]


def test_a_snapshot_is_every_file(machine: Machine, library: Library) -> None:
    folder = machine.run(SNAPSHOT, repository="alice/tiny", options={})
    assert hashes(folder) == library.hashes
    assert Path(folder).name == library.commits[1]


def test_a_snapshot_of_patterns_is_the_files_that_match(machine: Machine, library: Library) -> None:
    options = {
        "allow_patterns": ["*.json", "docs/*"],
        "ignore_patterns": ["tokenizer*"],
        "revision": "dev/x",
        "local_dir": str(machine.home / "here"),
    }
    folder = machine.run(SNAPSHOT, repository="alice/tiny", options=options)
    wanted = {"config.json", "generation_config.json", "docs/deep/note s.txt"}
    assert hashes(folder) == {path: library.hashes[path] for path in wanted}


def test_the_command_downloads_a_repository_and_a_file(machine: Machine, library: Library) -> None:
    programs = ["hf", "huggingface-cli"] if machine.version < (1,) else ["hf"]
    for program in programs:
        folder = machine.home / f"by {program}"
        done = machine.command(
            "download", "alice/tiny", "--local-dir", folder, "--exclude", "*.txt", program=program
        )
        assert done.returncode == 0, done.stderr
        expected = {path: digest for path, digest in library.hashes.items() if ".txt" not in path}
        assert hashes(folder) == expected
        done = machine.command(
            "download", "alice/tiny", "branch.txt", "--revision", "dev/x", program=program
        )
        assert done.returncode == 0, done.stderr
        assert library.commits[2] in done.stdout


def test_what_is_not_there_is_said_by_kind(machine: Machine, library: Library) -> None:
    stranger = machine.another(token=None)
    for which in (machine, stranger):
        found = which.run(MISSING)
        assert found["exist"] == [False] * 4
        for what, words in {
            "name": "NAMESPACE/NAME", "name of files": "NAMESPACE/NAME",
            "data set": "this hub keeps models", "space": "this hub keeps models",
            "repository": "alice/nowhere", "namespace": "nobody/nowhere",
        }.items():  # fmt: skip
            assert words in found[what]["text"]
            assert "RepositoryNotFoundError" in found[what]["kinds"], found[what]
        for what in ("revision", "snapshot"):
            assert "RevisionNotFoundError" in found[what]["kinds"], found[what]
        assert "EntryNotFoundError" in found["entry"]["kinds"], found["entry"]
        assert "LocalEntryNotFoundError" not in found["entry"]["kinds"], found["entry"]
        for what in ("private", "private info"):
            if which is machine:
                assert found[what] is None
            else:
                assert "RepositoryNotFoundError" in found[what]["kinds"], found[what]


def test_who_may_not_know_of_a_repository_is_told_what_is_told_of_none(
    machine: Machine, library: Library, world: World
) -> None:
    found = machine.another(token=world.bob).run(MISSING)
    there, absent = found["private"], found["repository"]
    assert there["kinds"] == absent["kinds"]
    assert "RepositoryNotFoundError" in there["kinds"]


# Later ones try for half a minute, or stumble over their own second try.
@pytest.mark.parametrize("machine", ["hub-0.34"], indirect=True)
def test_a_hub_that_cannot_be_reached_is_no_missing_file(
    machine: Machine, library: Library
) -> None:
    away = machine.another(endpoint="http://127.0.0.1:9")
    failed = away.refused(FILES, repository="alice/tiny", wanted=[("config.json", None)])
    assert "LocalEntryNotFoundError" in failed.kinds, failed.output


def test_what_was_downloaded_is_there_without_the_hub(machine: Machine, library: Library) -> None:
    wanted = [("config.json", None), ("branch.txt", "dev/x")]
    paths = machine.run(FILES, repository="alice/tiny", wanted=wanted)
    offline = {"HF_HUB_OFFLINE": "1"}
    assert machine.run(FILES, env=offline, repository="alice/tiny", wanted=wanted) == paths


def test_a_download_that_was_cut_goes_on(machine: Machine, big_file: bytes, world: World) -> None:
    with damaging_proxy(world.hub.address, cut_at=(len(big_file) * 5 // 8,)) as proxy:
        through = machine.another(endpoint=proxy.url)
        n_calls, path = through.run(PATIENT, repository="alice/big", path="big.bin")
        assert proxy.is_spent
        # What came before the cut was 5 / 8. By plain HTTP clients keep of it whole blocks of 10 MB
        # or all; through Xet they fetch a range again, and a file of this size is one range.
        most = 1.7 if machine.version >= (2,) else 1.25
        assert proxy.received < most * len(big_file)
    assert n_calls == (1 if machine.version >= (1, 20) else 2)
    assert sha256_of(path) == sha256(big_file).hexdigest()


def test_a_file_of_one_repository_is_linked_in_another(
    newest: Machine, world: World, big_file: bytes, name: str
) -> None:
    world.hub.create(name, private=True, token=world.alice)
    digest = sha256(big_file).hexdigest()
    add = {"op": "add", "path": "deep/same.bin", "sha256": digest, "size": len(big_file)}
    commits = f"/v1/repositories/{name}/commits"
    made = world.hub.call("POST", commits, token=world.alice, body={"operations": [add]})
    assert made.status == 201, made.body

    def sent_by_hub(machine: Machine, repository: str, path: str) -> int:
        def sent() -> int:
            found = world.hub.call("GET", "/v1/metrics", token=world.hub.admin_token).json()
            return int(found["sent_bytes"])

        before = sent()
        (found,) = machine.run(FILES, repository=repository, wanted=[(path, None)])
        assert sha256_of(found) == digest
        return sent() - before

    assert sent_by_hub(newest, "alice/big", "big.bin") > len(big_file)
    assert sent_by_hub(newest, name, "deep/same.bin") < 100_000
    # It is the client's own doing, and by names that Xet gives.
    alone = newest.another(settings={"HF_HUB_DISABLE_SHARED_BLOBS": "1"})
    assert sent_by_hub(alone, "alice/big", "big.bin") > len(big_file)
    assert sent_by_hub(alone, name, "deep/same.bin") > len(big_file)


@pytest.mark.parametrize("machine", ["hub-1.4", "hub-1.26", NEWEST], indirect=True)
def test_the_cache_is_verified_against_the_hub(machine: Machine, library: Library) -> None:
    folder = machine.run(SNAPSHOT, repository="alice/tiny", options={})
    done = machine.command("cache", "verify", "alice/tiny", "--revision", "main")
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(len(library.tiny)) in done.stdout
    blob = (Path(folder) / "model.safetensors").resolve()
    blob.chmod(0o600)
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    done = machine.command("cache", "verify", "alice/tiny", "--revision", "main")
    assert done.returncode != 0
    assert "model.safetensors" in done.stdout + done.stderr


def test_files_are_there_before_their_ingest(
    machine: Machine, library: Library, unworked: RunningHub
) -> None:
    there = machine.another(endpoint=unworked.url, token=None)
    folder = there.run(SNAPSHOT, repository="admin/landed", options={})
    assert hashes(folder) == library.hashes
