"""Files sent by every client and in every way it has, and commits of them."""

import json
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from clients.conftest import PART_BYTES, Library, World
from clients.machine import Machine, hashes
from deltahub.registry.names import git_attributes
from support.models.model_folders import contents

FILES = """
from io import BytesIO
from pathlib import Path
from random import Random
from huggingface_hub import HfApi
api = HfApi()
api.create_repo(name)
api.upload_file(repo_id=name, path_or_fileobj=str(weights), path_in_repo="model.safetensors")
data = Path(weights).read_bytes()
api.upload_file(repo_id=name, path_or_fileobj=data[:-1], path_in_repo="sub/bytes.bin")
with open(weights, "rb") as file:
    api.upload_file(repo_id=name, path_or_fileobj=file, path_in_repo="open.bin")
api.upload_file(repo_id=name, path_or_fileobj=BytesIO(b"{}"), path_in_repo="a #%20 b.json")
api.upload_file(repo_id=name, path_or_fileobj=b"", path_in_repo="empty.txt")
result = api.upload_file(
    repo_id=name, path_or_fileobj=b"small", path_in_repo="small.bin", commit_message="The last",
    commit_description="of six",
).oid
"""
FOLDER = """
from huggingface_hub import HfApi
api = HfApi()
api.create_repo(name, exist_ok=True)
first = api.upload_folder(repo_id=name, folder_path=folder, ignore_patterns=["*.txt"])
again = api.upload_folder(repo_id=name, folder_path=folder, ignore_patterns=["*.txt"])
below = api.upload_folder(
    repo_id=name, folder_path=folder, path_in_repo="below", allow_patterns=["*.json"]
)
less = api.upload_folder(
    repo_id=name, folder_path=folder, path_in_repo="below", allow_patterns=["config.json"],
    delete_patterns=["*.json"],
)
result = [getattr(made, "oid", made) for made in (first, again, below, less)]
"""
COMMIT = """
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi
api = HfApi()
api.create_repo(name)
api.create_branch(name, branch="dev/y")
def commit(operations, **more):
    return api.create_commit(
        name, operations, commit_message="Changed", revision="dev/y", **more
    ).oid
first = commit([
    CommitOperationAdd("one.bin", b"one" * 1000),
    CommitOperationAdd("two.bin", weights),
    CommitOperationAdd("folder/three.txt", b"three"),
    CommitOperationAdd("folder/four.txt", b"four"),
    CommitOperationAdd("five.txt", b"five"),
])
second = commit([
    CommitOperationDelete("one.bin"),
    CommitOperationDelete("folder/", is_folder=True),
    CommitOperationCopy("two.bin", "copies/two again.bin"),
    CommitOperationCopy("five.txt", "copies/five.txt"),
    CommitOperationAdd("five.txt", b"changed"),
], parent_commit=first)
third = commit([
    CommitOperationCopy("one.bin", "one.bin", src_revision=first),
])
result = [first, second, third]
"""
MANY = """
from random import Random
from huggingface_hub import CommitOperationAdd, HfApi
api = HfApi()
api.create_repo(name)
chance = Random(3)
operations = [
    CommitOperationAdd(f"{i % 7}/{i}.txt", chance.randbytes(chance.randrange(2000, 20_000)))
    for i in range(n)
]
result = api.create_commit(name, operations, commit_message="Many").oid
"""
LARGE_FOLDER = """
from huggingface_hub import HfApi
HfApi().upload_large_folder(
    name, folder, repo_type="model", num_workers=2, print_report=False, revision="main"
)
"""

PUSH = """
from huggingface_hub import HfApi
HfApi().create_repo(name)
HfApi().upload_folder(repo_id=name, folder_path=folder)
"""


def sha(data: bytes) -> str:
    return sha256(data).hexdigest()


def test_paths_bytes_and_open_files_arrive(
    uploader: Machine, library: Library, world: World, name: str
) -> None:
    weights = library.models.tiny / "model.safetensors"
    data = weights.read_bytes()
    assert len(data) > 2 * PART_BYTES  # in parts, where the client can
    commit = uploader.run(FILES, name=name, weights=weights)
    assert world.hashes(name) == {
        "model.safetensors": sha(data),
        "sub/bytes.bin": sha(data[:-1]),
        "open.bin": sha(data),
        "a #%20 b.json": sha(b"{}"),
        "empty.txt": sha(b""),
        "small.bin": sha(b"small"),
    }
    shown = world.hub.call("GET", f"/v1/repositories/{name}/revision", token=world.alice).json()
    assert shown["commit"] == commit
    assert shown["message"] == "The last\n\nof six"
    assert shown["author"] == "alice"


def test_a_folder_arrives_and_what_is_the_same_makes_no_commit(
    uploader: Machine, library: Library, world: World, name: str
) -> None:
    folder = uploader.home.parent / "folder"
    for path, data in library.tiny.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    first, again, below, less = uploader.run(FOLDER, name=name, folder=folder)
    wanted = {path: one for path, one in hashes(folder).items() if not path.endswith(".txt")}
    assert world.hashes(name, first) == wanted
    assert again == first
    configs = {path: one for path, one in hashes(folder).items() if path.endswith(".json")}
    assert world.hashes(name, below) == wanted | {f"below/{p}": one for p, one in configs.items()}
    assert world.hashes(name, less) == wanted | {"below/config.json": configs["config.json"]}


def test_a_commit_adds_deletes_and_copies_at_once(
    uploader: Machine, library: Library, world: World, name: str
) -> None:
    weights = library.models.tiny / "model.safetensors"
    first, second, third = uploader.run(COMMIT, name=name, weights=weights)
    two, five = sha(weights.read_bytes()), sha(b"five")
    assert world.hashes(name, first) == {
        "one.bin": sha(b"one" * 1000),
        "two.bin": two,
        "folder/three.txt": sha(b"three"),
        "folder/four.txt": sha(b"four"),
        "five.txt": five,
    }
    after = {
        "two.bin": two,
        "five.txt": sha(b"changed"),
        "copies/two again.bin": two,
        "copies/five.txt": five,
    }
    assert world.hashes(name, second) == after
    assert world.hashes(name, "dev/y") == after | {"one.bin": sha(b"one" * 1000)}
    assert world.hashes(name) == {}
    assert third


def test_the_command_uploads_a_folder_and_a_file_to_a_new_branch(
    uploader: Machine, library: Library, world: World, name: str
) -> None:
    folder = library.models.sharded
    done = uploader.command("upload", name, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert world.hashes(name) == hashes(folder)
    program = "huggingface-cli" if uploader.version < (1,) else "hf"
    more = ["--revision", "new/branch", "--commit-message", "One more"]
    done = uploader.command(
        "upload", name, folder / "config.json", "more/config.json", *more, program=program
    )
    assert done.returncode == 0, done.stdout + done.stderr
    on_branch = world.hashes(name, "new/branch")
    assert on_branch == hashes(folder) | {"more/config.json": on_branch["config.json"]}
    assert world.hashes(name) == hashes(folder)


# The first and the last that have it; it waits for seconds between its steps.
# The one waits no longer than 10 s for any answer; the other is what is installed today.
@pytest.mark.parametrize("machine", ["hub-1.4", "newest"], indirect=True)
def test_many_small_files_are_one_commit(machine: Machine, world: World, name: str) -> None:
    commit = machine.run(MANY, name=name, n=700)
    path = f"/v1/repositories/{name}/revision?revision={commit}"
    entries = world.hub.call("GET", path, token=world.alice).json()["entries"]
    chance = Random(3)
    files = [chance.randbytes(chance.randrange(2000, 20_000)) for _ in range(700)]
    wanted = {f"{i % 7}/{i}.txt": sha256(data).hexdigest() for i, data in enumerate(files)}
    assert {entry["path"]: entry["sha256"] for entry in entries} == wanted | {
        ".gitattributes": sha256(git_attributes()).hexdigest()
    }


@pytest.mark.parametrize("uploader", ["hub-0.34", "hub-0.36", "hub-1.4", "hub-1.26"], indirect=True)
def test_a_large_folder_arrives(
    uploader: Machine, library: Library, world: World, name: str
) -> None:
    folder = uploader.home.parent / "folder"
    for path, data in contents(library.models.sharded).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    (folder / "more").mkdir()
    for i in range(30):
        (folder / "more" / f"{i}.json").write_text(json.dumps({"number": i}))
    uploader.run(LARGE_FOLDER, name=name, folder=folder)
    assert world.hashes(name) == hashes(folder)


def test_what_was_uploaded_comes_back_to_another_machine(
    uploader: Machine, library: Library, name: str
) -> None:
    script = """
    from huggingface_hub import HfApi, snapshot_download
    HfApi().create_repo(name, private=True)
    HfApi().upload_folder(repo_id=name, folder_path=folder)
    """
    uploader.run(script, name=name, folder=library.models.lora)
    script = "from huggingface_hub import snapshot_download\nresult = snapshot_download(name)"
    folder = uploader.another().run(script, name=name)
    found = hashes(folder)
    del found[".gitattributes"]
    assert found == hashes(library.models.lora)
    assert not Path(folder).is_relative_to(uploader.home)


def test_the_same_files_are_sent_by_several_at_once(
    uploader: Machine, world: World, name: str
) -> None:
    # As checkpoints of one run hold them, and as jobs on several machines push them.
    files = {
        f"checkpoint-{i}/{path}": data
        for i in (1, 2)
        for path, data in {
            "same.json": b'{"the": "same"}',
            "same.bin": Random(name).randbytes(2_000_000),
            "own.bin": Random(i).randbytes(50_000),
        }.items()
    }
    folder = uploader.home.parent / "folder"
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    names = [f"{name}-{i}" for i in range(2)]
    with ThreadPoolExecutor() as pool:
        pushes = [
            pool.submit(uploader.another().run, PUSH, name=each, folder=folder) for each in names
        ]
        for push in pushes:
            push.result()
    for each in names:
        assert world.hashes(each) == hashes(folder)
