"""Calls that few people make, and a hub below a path; each with the client that has them."""

import shutil
import socket
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from clients.conftest import World
from clients.environments import NEWEST, Environment
from clients.machine import Machine
from deltahub.registry.access import organizations
from support.needed import lacking
from support.service.hub import served_hub

MANY = """
from huggingface_hub import HfApi
api = HfApi()
api.create_repo(name)
for path, data in {
    "weights/a.bin": b"a" * 5000, "weights/b.txt": b"b", "kept.txt": b"k", "README.md": b"# A",
}.items():
    api.upload_file(repo_id=name, path_in_repo=path, path_or_fileobj=data)
copy = api.duplicate_repo(name, name + "-copy")
again = api.duplicate_repo(name, name + "-copy", exist_ok=True)
api.create_branch(name, branch="dev")
api.delete_file("weights", name)
user = api.get_user_overview("Alice")
lab = api.get_organization_overview("lab")
result = {
    "copy": [copy.repo_id, again.repo_id, sorted(api.list_repo_files(name + "-copy"))],
    "left": sorted(api.list_repo_files(name)),
    "user": [user.username, [one.name for one in user.orgs], user.num_models > 1],
    "lab": [lab.name, lab.num_users],
    "members": sorted(one.username for one in api.list_organization_members("lab")),
    "strangers": caught(lambda: list(api.list_organization_members("bob"))),
    "sorted": [
        len(list(api.list_models(author="alice", sort=sort))) > 1
        for sort in ("likes", "trending_score")
    ],
    "expanded": api.model_info(name, expand=["gguf", "sha", "baseModels", "widgetData"]).sha,
    "formatted": api.list_repo_commits(name, formatted=True)[0].formatted_title,
    "refs": [[one.filename, one.ref] for one in api.list_lfs_files(name)],
    "metadata": caught(lambda: api.upload_file(
        repo_id=name, path_in_repo="README.md", path_or_fileobj=b"---\\nbase_model: a b\\n---\\n"
    )),
    "head": api.model_info(name, revision="HEAD").sha == api.model_info(name).sha,
}
"""
WAYS = """
from pathlib import Path
from hashlib import sha256
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download
api = HfApi()
url = api.create_repo("admin/below")
data = bytes(range(256)) * 9000
api.upload_file(repo_id="admin/below", path_in_repo="w.bin", path_or_fileobj=data)
folder = Path(snapshot_download("admin/below"))
api.move_repo("admin/below", "admin/Moved")
old = hf_hub_download("admin/below", "w.bin", force_download=True)
for number in range(3):
    api.create_repo(f"admin/m{number}")
result = {
    "url": str(url),
    "snapshot": sha256((folder / "w.bin").read_bytes()).hexdigest(),
    "old": sha256(Path(old).read_bytes()).hexdigest(),
    "pages": len(list(api.list_models(limit=3))),
    "commits": len(api.list_repo_commits("admin/moved")),
    "tree": sorted(one.path for one in api.list_repo_tree("admin/moved")),
    "fs": HfFileSystem().cat("admin/moved/w.bin", start=250, end=260).hex(),
}
"""


def test_calls_that_few_people_make(newest: Machine, name: str, world: World) -> None:
    organizations.create_organization(world.registry, "lab")
    organizations.add_member(world.registry, "lab", "alice", "write")
    found = newest.run(MANY, name=name)
    assert found["copy"][:2] == [f"{name}-copy"] * 2
    files = [".gitattributes", "README.md", "kept.txt", "weights/a.bin", "weights/b.txt"]
    assert found["copy"][2] == files
    assert found["left"] == files[:3]
    assert found["user"] == ["alice", ["lab"], True]
    assert found["lab"] == ["lab", 1]
    assert found["members"] == ["alice"]
    assert "404" in found["strangers"]["text"]
    assert found["sorted"] == [True, True]
    assert len(found["expanded"]) == 40
    assert found["formatted"] == "Delete weights with huggingface_hub"
    assert found["refs"] == [["weights/a.bin", "refs/heads/main"]]
    assert "base_model" in found["metadata"]["text"]
    assert found["head"]


@pytest.mark.parametrize("client", ["hub-1.4", NEWEST])
@pytest.mark.parametrize("end", ["", "/"])
def test_all_ways_lead_below_the_path_of_the_hub(
    environments: dict[str, Environment], tmp_path: Path, client: str, end: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    public = f"http://127.0.0.1:{port}/models/hub"
    environment = {"DELTAHUB_SERVER_PUBLIC_URL": public}
    arguments = ("--port", str(port), "--no-worker")
    with served_hub(tmp_path / "data", environment=environment, arguments=arguments) as hub:
        endpoint = public + end
        machine = Machine(environments[client], tmp_path / "home", endpoint, hub.admin_token)
        found = machine.run(WAYS)
    data = sha256(bytes(range(256)) * 9000).hexdigest()
    assert found["url"] == f"{public}/admin/below"
    assert (found["snapshot"], found["old"]) == (data, data)
    assert (found["pages"], found["commits"]) == (3, 2)
    assert found["tree"] == [".gitattributes", "w.bin"]
    assert found["fs"] == "fafbfcfdfeff00010203"


def test_git_shows_what_to_do_instead(world: World, tmp_path: Path) -> None:
    if shutil.which("git") is None:
        lacking("git is not installed")
    command = ["git", "clone", f"{world.hub.url}/alice/tiny", str(tmp_path / "clone")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "hf download alice/tiny" in done.stderr
