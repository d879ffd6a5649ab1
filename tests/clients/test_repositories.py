"""Models, branches and tags made, moved and removed; what is listed of them."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from clients.conftest import Library, World
from clients.environments import NEWEST
from clients.machine import Machine
from deltahub.registry.access import users
from deltahub.registry.access.tokens import authenticate, create_token
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from support.registry.opened import ensure_repository

LIFE = """
from pathlib import Path
from huggingface_hub import HfApi
api = HfApi()
first = api.create_repo(name, private=private)
again = api.create_repo(name, exist_ok=True)
exists = caught(lambda: api.create_repo(name))
there = [api.repo_exists(name), api.file_exists(name, ".gitattributes")]
api.create_branch(name, branch="dev/x")
api.create_branch(name, branch="dev/x", exist_ok=True)
branch_exists = caught(lambda: api.create_branch(name, branch="dev/x"))
api.create_tag(name, tag="v1.0", revision="dev/x", tag_message="the first")
api.create_tag(name, tag="v1.0", exist_ok=True)
refs = api.list_repo_refs(name)
revisions = [api.revision_exists(name, one) for one in ("dev/x", "v1.0", "nope")]
api.delete_tag(name, tag="v1.0")
api.delete_branch(name, branch="dev/x")
less = api.list_repo_refs(name)
api.move_repo(name, name + "-moved")
moved = [api.model_info(one).id for one in (name, name + "-moved", name.upper())]
api.upload_file(path_or_fileobj=b"by the old name", path_in_repo="a.txt", repo_id=name)
api.upload_file(path_or_fileobj=bytes(5000), path_in_repo="a.bin", repo_id=name)
old = [Path(api.hf_hub_download(name, one)).stat().st_size for one in ("a.txt", "a.bin")]
info = api.model_info(name + "-moved")
api.delete_repo(name + "-moved")
api.delete_repo(name + "-moved", missing_ok=True)
gone = caught(lambda: api.delete_repo(name + "-moved"))
result = {
    "urls": [str(first), str(again)],
    "exists": exists,
    "there": there,
    "branch exists": branch_exists,
    "branches": [[one.name, one.ref] for one in refs.branches],
    "tags": [[one.name, one.ref] for one in refs.tags],
    "same commit": len({one.target_commit for one in refs.branches + refs.tags}),
    "revisions": revisions,
    "less": [[one.name for one in less.branches], [one.name for one in less.tags]],
    "moved": moved,
    "old": old,
    "private": info.private,
    "gone": gone,
}
"""
INFO = """
from huggingface_hub import HfApi
api = HfApi()
info = api.model_info("alice/tiny", files_metadata=True)
weights = next(one for one in info.siblings if one.rfilename == "model.safetensors")
config = next(one for one in info.siblings if one.rfilename == "config.json")
old = api.model_info("alice/tiny", revision="v1")
expanded = api.model_info("alice/tiny", expand=["safetensors", "usedStorage", "cardData"])
result = {
    "id": info.id,
    "author": info.author,
    "sha": info.sha,
    "private": info.private,
    "changed": info.last_modified.isoformat(),
    "created": info.created_at.isoformat(),
    "tags": info.tags,
    "library": info.library_name,
    "pipeline": info.pipeline_tag,
    "license": info.card_data.license,
    "files": sorted(one.rfilename for one in info.siblings),
    "weights": [weights.size, weights.lfs.sha256, weights.lfs.size],
    "config": [config.size, config.blob_id],
    "parameters": [expanded.safetensors.parameters, expanded.safetensors.total],
    "storage": getattr(expanded, "used_storage", None) or expanded.usedStorage,
    "expanded card": expanded.card_data.license,
    "on a tag": sorted(one.rfilename for one in old.siblings),
    "on a branch": api.model_info("alice/tiny", revision="dev/x").sha,
}
"""
TREE = """
from huggingface_hub import HfApi
from huggingface_hub.hf_api import RepoFile
api = HfApi()
def kinds(entries):
    return {one.path: type(one).__name__ for one in entries}
whole = list(api.list_repo_tree("alice/tiny", recursive=True))
expanded = list(api.list_repo_tree("alice/tiny", recursive=True, expand=True))
files = {one.path: one for one in whole if isinstance(one, RepoFile)}
paths = api.get_paths_info("alice/tiny", ["config.json", "docs", "nope.txt"], expand=True)
commits = api.list_repo_commits("alice/tiny", revision="dev/x")
result = {
    "whole": kinds(whole),
    "root": kinds(api.list_repo_tree("alice/tiny")),
    "docs": kinds(api.list_repo_tree("alice/tiny", "docs", revision="dev/x")),
    "missing": caught(lambda: list(api.list_repo_tree("alice/tiny", "nope"))),
    "files": sorted(api.list_repo_files("alice/tiny")),
    "weights": [files["model.safetensors"].size, files["model.safetensors"].lfs.sha256],
    "regular": files["config.json"].blob_id,
    "last": {one.path: one.last_commit.title for one in expanded if isinstance(one, RepoFile)},
    "paths": kinds(paths),
    "path commit": paths[0].last_commit.oid,
    "commits": [[one.commit_id, one.title, one.authors] for one in commits],
    "times": [one.created_at.isoformat() for one in commits],
}
"""
MANY = """
from huggingface_hub import CommitOperationAdd, HfApi
api = HfApi()
api.create_repo(name)
api.create_commit(name, [
    CommitOperationAdd(f"part-{i // 100}/{i:04}.txt", b"the same") for i in range(1100)
], commit_message="Many")
result = [
    len([one for one in api.list_repo_tree(name, recursive=True) if hasattr(one, "size")]),
    len(list(api.list_repo_tree(name, "part-3", expand=True))),
    len(api.list_repo_files(name)),
]
"""
PAGES = """
from huggingface_hub import HfApi
api = HfApi()
result = [
    [one.title for one in api.list_repo_commits("pages/one")],
    [one.id for one in api.list_models(author="pages")],
    [one.id for one in api.list_models(author="pages", limit=110)],
]
"""
LISTS = """
from inspect import signature
from huggingface_hub import HfApi
api, for_bob = HfApi(), HfApi(token=bob)
def ids(**options):
    return [one.id for one in api.list_models(**options)]
result = {
    "author": ids(author="alice"),
    "search": ids(search="shard", author="alice"),
    "limit": ids(author="alice", limit=2),
    "tag": ids(author="alice", filter="text-generation"),
    "changed": ids(author="alice", sort="lastModified", limit=3),
    "full": [one.sha for one in api.list_models(author="alice", search="tiny", full=True)],
    "nobody": ids(author="nobody"),
    "gated": ids(author="alice", gated=True),
    "sort": caught(lambda: ids(sort="nonsense")),
    "parameters": [
        ids(author="alice", search="tiny", num_parameters=asked) for asked in ("min:1", "max:1")
    ] if "num_parameters" in signature(api.list_models).parameters else None,
    "for bob": [one.id for one in for_bob.list_models(author="alice")],
}
"""
CHECKS = """
from inspect import signature
from huggingface_hub import HfApi
def checks(token):
    api = HfApi(token=token)
    return {
        "who": caught(api.whoami) or api.whoami(),
        "read": caught(lambda: api.auth_check("alice/tiny")),
        "private": caught(lambda: api.auth_check("alice/secret")),
        "write": caught(lambda: api.auth_check("alice/tiny", write=True)) if has_write else None,
    }
has_write = "write" in signature(HfApi.auth_check).parameters
result = [has_write, *(checks(token) for token in tokens)]
"""
LFS_FILES = """
from huggingface_hub import HfApi
def files(token=None):
    listed = HfApi(token=token).list_lfs_files("alice/tiny")
    return [[one.filename, one.file_oid, one.size, one.pushed_at.isoformat()] for one in listed]
result = [files(), caught(lambda: files(bob))]
"""
VISIBILITY = """
from huggingface_hub import HfApi, hf_hub_download
api, stranger = HfApi(), HfApi(token=nobody)
api.create_repo(name, private=True)
api.upload_file(
    repo_id=name, path_or_fileobj=b"kept from others" * 1000, path_in_repo="w.safetensors"
)
private = [api.model_info(name).private]
hidden = caught(lambda: stranger.model_info(name))
# Old clients have an older name for it.
change = getattr(api, "update_repo_visibility", api.update_repo_settings)
for wanted in (False, True, False):
    change(name, private=wanted)
    private.append(api.model_info(name).private)
result = {
    "private": private, "hidden": hidden,
    "shown": hf_hub_download(name, "w.safetensors", token=nobody),
}
"""
UNSUPPORTED = """
import inspect
from huggingface_hub import HfApi
from huggingface_hub.utils import get_session, hf_raise_for_status
def set_xet(api):
    if "xet_enabled" in inspect.signature(api.update_repo_settings).parameters:
        return api.update_repo_settings("alice/tiny", xet_enabled=True)
    # Later clients have no word for it, nor for what any other setting is.
    url = f"{api.endpoint}/api/models/alice/tiny/settings"
    headers = api._build_hf_headers()
    hf_raise_for_status(get_session().put(url, headers=headers, json={"description": "x"}))
api = HfApi()
result = {
    "data sets": caught(lambda: api.create_repo("alice/data", repo_type="dataset")),
    "data set list": caught(lambda: list(api.list_datasets())),
    "likers": caught(lambda: list(api.list_repo_likers("alice/tiny"))),
    "liked": caught(lambda: api.list_liked_repos("alice")),
    "tags": caught(lambda: api.get_model_tags()),
    "discussions": caught(lambda: list(api.get_repo_discussions("alice/tiny"))),
    "gated": caught(lambda: api.update_repo_settings("alice/tiny", gated="auto")),
    "setting": caught(lambda: set_xet(api)),
    "collections": caught(lambda: list(api.list_collections(owner="alice"))),
    "webhooks": caught(lambda: api.list_webhooks()),
}
"""


def test_a_model_lives_from_its_creation_to_its_end(
    machine: Machine, name: str, world: World
) -> None:
    found = machine.run(LIFE, name=name, private=True)
    assert found["urls"] == [f"{world.hub.url}/{name}"] * 2
    assert "409" in found["exists"]["text"]
    assert name in found["exists"]["text"]
    assert found["there"] == [True, True]
    assert "409" in found["branch exists"]["text"]
    assert sorted(found["branches"]) == [["dev/x", "refs/heads/dev/x"], ["main", "refs/heads/main"]]
    assert found["tags"] == [["v1.0", "refs/tags/v1.0"]]
    assert found["same commit"] == 1
    assert found["revisions"] == [True, True, False]
    assert found["less"] == [["main"], []]
    assert found["moved"] == [name + "-moved", name + "-moved", name + "-moved"]
    assert found["old"] == [15, 5000]
    assert found["private"] is True
    assert "RepositoryNotFoundError" in found["gone"]["kinds"]


def test_the_info_of_a_model_says_what_is_in_it(machine: Machine, library: Library) -> None:
    found = machine.run(INFO)
    weights = library.tiny["model.safetensors"]
    sha256 = library.hashes["model.safetensors"]
    assert (found["id"], found["author"], found["private"]) == ("alice/tiny", "alice", False)
    assert found["sha"] == library.commits[1]
    assert found["on a branch"] == library.commits[2]
    for moment in ("changed", "created"):
        age = datetime.now(UTC) - datetime.fromisoformat(found[moment])
        assert 0 <= age.total_seconds() < 3600
    assert {"tiny", "for tests", "transformers", "safetensors", "license:apache-2.0"} <= set(
        found["tags"]
    )
    assert found["library"] == "transformers"
    assert found["pipeline"] == "text-generation"
    assert found["license"] == found["expanded card"] == "apache-2.0"
    assert found["files"] == sorted(library.tiny)
    assert found["on a tag"] == ["config.json", "old.txt"]
    assert found["weights"] == [len(weights), sha256, len(weights)]
    assert found["config"] == [len(library.tiny["config.json"]), library.blob_id("config.json")]
    n_parameters = library.models.parameters
    assert found["parameters"] == [{"BF16": n_parameters}, n_parameters]
    assert found["storage"] >= len(weights)


def test_trees_paths_and_logs_tell_the_same(machine: Machine, library: Library) -> None:
    found = machine.run(TREE)
    files = dict.fromkeys(library.tiny, "RepoFile")
    folders = dict.fromkeys(("docs", "docs/deep"), "RepoFolder")
    assert found["whole"] == files | folders
    at_root = {path: kind for path, kind in files.items() if "/" not in path}
    assert found["root"] == at_root | {"docs": "RepoFolder"}
    assert found["docs"] == {"docs/deep": "RepoFolder"}
    assert "EntryNotFoundError" in found["missing"]["kinds"]
    assert found["files"] == sorted(library.tiny)
    weights = library.tiny["model.safetensors"]
    assert found["weights"] == [len(weights), library.hashes["model.safetensors"]]
    assert found["regular"] == library.blob_id("config.json")
    titles = dict.fromkeys(library.tiny, "All of it") | {"old.txt": "The first"}
    assert found["last"] == titles
    assert found["paths"] == {"config.json": "RepoFile", "docs": "RepoFolder"}
    assert found["path commit"] == library.commits[1]
    first, second, third = library.commits
    assert [one[0] for one in found["commits"]] == [third, second, first]
    assert [one[1] for one in found["commits"]][1:] == ["All of it", "The first"]
    assert all(one[2] == ["alice"] for one in found["commits"])
    assert found["times"] == sorted(found["times"], reverse=True)


def test_long_lists_come_page_by_page(newest: Machine, name: str) -> None:
    assert newest.run(MANY, name=name) == [1101, 100, 1101]


def test_the_log_and_the_list_of_models_come_page_by_page(newest: Machine, world: World) -> None:
    """More of both than one page has, which is 50 and 100."""
    one = "pages/one"
    with Registry.open(Settings(data_dir=world.hub.data_dir)) as registry:
        users.create_user(registry, "pages")
        token = create_token(registry, "pages", "write")
        caller = authenticate(registry, token)
        for i in range(120):
            ensure_repository(registry, caller, f"pages/m-{i}")
        ensure_repository(registry, caller, one)
        contents = (b"even", b"odd.")
        files = [AddFile("file.txt", world.hub.upload(data, token), 4) for data in contents]
        for i in range(70):
            adding = [files[i % 2]]
            commit(registry, caller, one, "main", adding, message=f"Number {i}")
    titles, by_default, by_limit = newest.another(token=token).run(PAGES)
    assert titles == [f"Number {i}" for i in reversed(range(70))]
    wanted = sorted([one, *(f"pages/m-{i}" for i in range(120))])
    assert sorted(by_default) == wanted
    assert len(by_limit) == len(set(by_limit)) == 110
    assert set(by_limit) < set(wanted)


@pytest.mark.parametrize("machine", ["hub-0.34", NEWEST], indirect=True)
def test_large_files_are_listed_for_who_may_write(
    machine: Machine, library: Library, world: World
) -> None:
    files, refused = machine.run(LFS_FILES, bob=world.bob)
    listed = {path: (digest, size) for path, digest, size, _ in files}
    weights = library.tiny["model.safetensors"]
    assert listed["model.safetensors"] == (library.hashes["model.safetensors"], len(weights))
    assert "config.json" not in listed
    assert all(datetime.fromisoformat(moment) for *_, moment in files)
    assert "403" in refused["text"]


def test_models_are_found(machine: Machine, library: Library, world: World) -> None:
    found = machine.run(LISTS, bob=world.bob)
    known = {"alice/tiny", "alice/sharded", "alice/lora", "alice/secret"}
    assert known <= set(found["author"])
    assert found["search"] == ["alice/sharded"]
    assert len(found["limit"]) == 2
    assert {"alice/tiny", "alice/sharded"} <= set(found["tag"])
    assert "alice/secret" not in found["tag"]
    assert len(found["changed"]) == 3
    assert found["full"] == [library.commits[1]]
    assert found["nobody"] == found["gated"] == []
    assert "lastModified" in found["sort"]["text"]
    assert found["parameters"] in (None, [["alice/tiny"], []])
    assert "alice/secret" not in found["for bob"]
    assert {"alice/tiny", "alice/lora"} <= set(found["for bob"])


def test_a_client_learns_who_it_is_and_what_it_may(
    machine: Machine, library: Library, world: World
) -> None:
    tokens = [world.alice, world.alice_reads, world.bob, "dh_nonsense"]
    has_write, found, reads, for_bob, unknown = machine.run(CHECKS, tokens=tokens)
    assert (found["who"]["name"], found["who"]["type"]) == ("alice", "user")
    assert found["who"]["auth"]["accessToken"]["role"] == "write"
    assert found["read"] is found["private"] is found["write"] is None
    if has_write:
        assert "403" in reads["write"]["text"]
        assert "403" in for_bob["write"]["text"]
    assert has_write or machine.environment.name != NEWEST
    assert reads["who"]["auth"]["accessToken"]["role"] == "read"
    assert for_bob["read"] is None
    assert "RepositoryNotFoundError" in for_bob["private"]["kinds"]
    assert "HTTPError" in unknown["who"]["kinds"]
    assert "token" in unknown["who"]["text"]


@pytest.mark.parametrize("machine", ["hub-0.34", "hub-1.4", NEWEST], indirect=True)
def test_a_model_becomes_private_and_public_again(
    machine: Machine, name: str, world: World
) -> None:
    found = machine.run(VISIBILITY, name=name, nobody=False)
    assert found["private"] == [True, False, True, False]
    assert "RepositoryNotFoundError" in found["hidden"]["kinds"]
    assert Path(found["shown"]).read_bytes() == b"kept from others" * 1000


def test_what_the_hub_has_not_is_refused_with_a_sentence(
    machine: Machine, library: Library
) -> None:
    found = machine.run(UNSUPPORTED)
    for what, error in found.items():
        assert error is not None, what
        assert "501" in error["text"], (what, error)
        assert "this hub" in error["text"], (what, error)
