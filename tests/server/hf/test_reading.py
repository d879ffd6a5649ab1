"""Reads of Hugging Face clients: files, trees, models, logs, and the errors for absent ones."""

import json
from hashlib import sha1, sha256
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import event

from deltahub.registry.db.models import File
from support.models.model_folders import base_tensors, contents, write_model
from support.service.hf_door import header, send_commit, send_object, small
from support.service.hub import Answer, RunningHub

NAME = "admin/hf"
CARD = b"""---
license: mit
language: [en, de]
base_model: admin/some-base
base_model_relation: finetune
tags: [mine]
pipeline_tag: text-generation
made: 2024-05-06
---
# A model
"""


def get(hub: RunningHub, path: str, method: str = "GET", token: str = "", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return hub.call(method, path, headers=named, token=token or None)


def error_of(answer: Answer) -> tuple[int, str]:
    assert answer.json()["error"]
    assert answer.headers["X-Error-Message"]
    return answer.status, answer.headers["X-Error-Code"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = write_model(tmp_path_factory.mktemp("m") / "model", base_tensors(), n_shards=2)
    return contents(folder) | {"README.md": CARD, "folder/deep/å+%.txt": b"odd"}


@pytest.fixture(scope="module")
def commits(hub: RunningHub, model: dict[str, bytes]) -> list[str]:
    hub.create(NAME)
    first = hub.commit(NAME, model, message="first\n\nits body")["commit"]
    later = {"folder/deep/å+%.txt": b"odder", "new.txt": b"new"}
    second = hub.commit(NAME, later, message="second")["commit"]
    made = hub.call(
        "POST", f"/api/models/{NAME}/branch/dev%2Fx", token=hub.admin_token,
        body={"startingPoint": first},
    )  # fmt: skip
    assert made.status == 200, made.body
    return [first, second]


def test_a_file_has_what_clients_cannot_do_without(
    hub: RunningHub, commits: list[str], model: dict[str, bytes]
) -> None:
    for path, data in model.items():
        if path.startswith("folder"):
            continue
        for method in ("HEAD", "GET"):
            answer = get(hub, f"/{NAME}/resolve/main/{path}", method)
            assert answer.status == 200
            assert answer.headers["X-Repo-Commit"] == commits[1]
            assert answer.headers["Content-Length"] == str(len(data))
            assert answer.headers["X-Linked-Size"] == str(len(data))
            is_lfs = path.endswith(".safetensors")
            blob = b"blob %d\0" % len(data) + data
            etag = sha256(data).hexdigest() if is_lfs else sha1(blob).hexdigest()
            assert answer.headers["ETag"] == f'"{etag}"'
            assert answer.body == (data if method == "GET" else b"")


def test_ranges_and_paths_that_are_escaped(hub: RunningHub, commits: list[str]) -> None:
    path = f"/{NAME}/resolve/{commits[0]}/folder/deep/%C3%A5%2B%25.txt"
    assert get(hub, path).body == b"odd"
    part = get(hub, path, Range="bytes=1-")
    assert (part.status, part.body, part.headers["Content-Range"]) == (206, b"dd", "bytes 1-2/3")
    assert get(hub, path, Range="bytes=9-").status == 416


def test_a_branch_with_a_slash_is_one_word(hub: RunningHub, commits: list[str]) -> None:
    for revision in ("dev%2Fx", "dev%2fx", commits[0], "refs%2Fheads%2Fdev%2Fx"):
        answer = get(hub, f"/{NAME}/resolve/{revision}/new.txt")
        assert error_of(answer) == (404, "EntryNotFound")
        assert answer.headers["X-Repo-Commit"] == commits[0]
        found = get(hub, f"/api/models/{NAME}/revision/{revision}").json()
        assert found["sha"] == commits[0]


def test_what_is_not_there_is_named_by_its_kind(hub: RunningHub, commits: list[str]) -> None:
    cases = {
        f"/{NAME}/resolve/main/none.txt": "EntryNotFound",
        f"/{NAME}/resolve/none/config.json": "RevisionNotFound",
        "/admin/none/resolve/main/config.json": "RepoNotFound",
        f"/api/models/{NAME}/tree/main/none": "EntryNotFound",
        f"/api/models/{NAME}/tree/none": "RevisionNotFound",
        "/api/models/admin/none": "RepoNotFound",
        "/api/models/admin/none/refs": "RepoNotFound",
        "/api/agent-harnesses": "not_found",
    }
    for path, kind in cases.items():
        assert error_of(get(hub, path)) == (404, kind), path
        # An answer to HEAD has no body: the client sees only the header.
        assert get(hub, path, "HEAD").headers["X-Error-Code"] in (kind, "method_not_allowed")


def test_what_this_hub_does_not_do_says_so(hub: RunningHub) -> None:
    for path in ("/api/datasets", "/api/spaces", f"/api/models/{NAME}/discussions/1",
                 "/api/collections/a/b", "/oauth/device"):  # fmt: skip
        assert error_of(get(hub, path)) == (501, "NotImplemented"), path


def test_private_models_are_unknown_to_strangers(hub: RunningHub) -> None:
    owner, stranger = hub.user("hf-owner"), hub.user("hf-stranger")
    hub.create("hf-owner/secret", private=True, token=owner)
    hub.commit("hf-owner/secret", {"config.json": b"{}"}, token=owner)
    for path in ("/hf-owner/secret/resolve/main/config.json", "/api/models/hf-owner/secret",
                 "/api/models/hf-owner/secret/tree/main",
                 "/api/models/hf-owner/secret/auth-check"):  # fmt: skip
        assert get(hub, path, token=owner).status == 200
        for token in ("", stranger):
            assert error_of(get(hub, path, token=token)) == (404, "RepoNotFound")
    listed = {item["id"] for item in get(hub, "/api/models?author=hf-owner").json()}
    assert listed == set()
    listed = {item["id"] for item in get(hub, "/api/models?author=hf-owner", token=owner).json()}
    assert listed == {"hf-owner/secret"}


def test_a_tree_lists_files_and_folders(
    hub: RunningHub, commits: list[str], model: dict[str, bytes]
) -> None:
    tree = get(hub, f"/api/models/{NAME}/tree/main?recursive=true&expand=false").json()
    files = {item["path"]: item for item in tree if item["type"] == "file"}
    assert set(files) == {*model, "new.txt"}
    assert {item["path"] for item in tree if item["type"] == "directory"} == {
        "folder", "folder/deep",
    }  # fmt: skip
    path = next(path for path in model if path.endswith(".safetensors"))
    digest, size = sha256(model[path]).hexdigest(), len(model[path])
    pointer = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n".encode()
    )
    assert files[path]["lfs"] == {"oid": digest, "size": size, "pointerSize": len(pointer)}
    assert files[path]["oid"] == sha1(b"blob %d\0" % len(pointer) + pointer).hexdigest()
    top = get(hub, f"/api/models/{NAME}/tree/main").json()
    assert {item["path"] for item in top} == {p.split("/")[0] for p in (*model, "new.txt")}
    deep = get(hub, f"/api/models/{NAME}/tree/main/folder").json()
    assert [item["path"] for item in deep] == ["folder/deep"]


def test_pages_of_a_tree_follow_one_commit(hub: RunningHub, commits: list[str]) -> None:
    whole = get(hub, f"/api/models/{NAME}/tree/main?recursive=true").json()
    seen: list[dict[str, Any]] = []
    url = f"/api/models/{NAME}/tree/main?recursive=true&limit=2"
    while url:
        answer = get(hub, url)
        seen += answer.json()
        link = answer.headers.get("Link", "")
        assert not link or commits[1] in link
        target = urlsplit(link.partition("<")[2].partition(">")[0])
        url = f"{target.path}?{target.query}" if link else ""
    assert seen == whole


def test_a_page_and_single_paths_read_no_more_than_they_show(
    hub: RunningHub, commits: list[str]
) -> None:
    read: list[str] = []

    def note(file: File, _context: object) -> None:
        read.append(file.sha256)

    form = {"Content-Type": "application/x-www-form-urlencoded"}
    url = f"/api/models/{NAME}"
    query = {"files": [{"path": "config.json", "size": 5, "sample": ""}]}
    event.listen(File, "load", note)
    try:
        page = get(hub, f"{url}/tree/main?limit=2").json()
        assert (len(page), len(read)) == (2, 2)
        hub.call("POST", f"{url}/paths-info/main", body=b"paths=config.json", headers=form)
        assert len(read) == 3
        hub.call("POST", f"{url}/preupload/main", body=query, token=hub.admin_token)
        assert len(read) == 4
    finally:
        event.remove(File, "load", note)


def test_a_tree_says_which_commit_changed_what(hub: RunningHub, commits: list[str]) -> None:
    tree = get(hub, f"/api/models/{NAME}/tree/main?recursive=true&expand=true").json()
    last = {item["path"]: item["lastCommit"] for item in tree}
    assert last["config.json"]["id"] == commits[0]
    assert last["config.json"]["title"] == "first"
    assert last["new.txt"]["id"] == last["folder"]["id"] == last["folder/deep"]["id"] == commits[1]


def test_paths_are_asked_for_in_a_form(hub: RunningHub, commits: list[str]) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    path = f"/api/models/{NAME}/paths-info/main"
    answer = hub.call(
        "POST", path, body=b"paths=folder&paths=none&paths=config.json&expand=true", headers=form
    )
    found = {item["path"]: item["lastCommit"]["id"] for item in answer.json()}
    assert found == {"folder": commits[1], "config.json": commits[0]}
    assert error_of(hub.call("POST", path, body=b"expand=true", headers=form))[0] == 422


def test_a_model_tells_what_its_files_say(
    hub: RunningHub, commits: list[str], model: dict[str, bytes]
) -> None:
    info = get(hub, f"/api/models/{NAME}?blobs=true").json()
    assert (info["id"], info["sha"], info["private"]) == (NAME, commits[1], False)
    assert info["cardData"]["language"] == ["en", "de"]
    assert info["cardData"]["made"] == "2024-05-06"
    assert {"mine", "license:mit", "base_model:admin/some-base",
            "base_model:finetune:admin/some-base", "safetensors"} <= set(info["tags"])  # fmt: skip
    assert info["pipeline_tag"] == "text-generation"
    counts = {name: tensor.numel() for name, tensor in base_tensors().items()}
    assert info["safetensors"] == {
        "parameters": {"F32": sum(counts.values())}, "total": sum(counts.values()),
    }  # fmt: skip
    siblings = {item["rfilename"]: item for item in info["siblings"]}
    assert set(siblings) == {*model, "new.txt"}
    assert siblings["new.txt"]["size"] == 3
    assert info["usedStorage"] == sum(map(len, model.values())) + len(b"odder") + len(b"new")
    some = get(hub, f"/api/models/{NAME}?expand=sha&expand=tags&expand=xetEnabled").json()
    assert set(some) == {"_id", "id", "sha", "tags"}


def test_headers_of_all_shards_at_once(
    hub: RunningHub, commits: list[str], model: dict[str, bytes]
) -> None:
    path = f"/api/models/{NAME}/safetensors-metadata/model.safetensors.index.json"
    answer = get(hub, path).json()
    index = json.loads(model["model.safetensors.index.json"])
    # Its weight_map repeats what the headers say.
    assert answer["index"] == {key: index[key] for key in index if key != "weight_map"}
    for shard, shown in answer["headers"].items():
        length = int.from_bytes(model[shard][:8], "little")
        assert shown == json.loads(model[shard][8 : 8 + length])
    assert set(answer["headers"]) == {p for p in model if p.endswith(".safetensors")}
    assert error_of(get(hub, path.replace("model.safetensors.index", "config")))[0] == 422


def test_the_log_goes_back_page_by_page(hub: RunningHub, commits: list[str]) -> None:
    answer = get(hub, f"/api/models/{NAME}/commits/main?limit=1")
    (newest,) = answer.json()
    assert (newest["id"], newest["title"], newest["authors"]) == (
        commits[1], "second", [{"user": "admin"}],
    )  # fmt: skip
    link = urlsplit(answer.headers["Link"].partition("<")[2].partition(">")[0])
    answer = get(hub, f"{link.path}?{link.query}")
    (oldest,) = answer.json()
    assert (oldest["id"], oldest["title"], oldest["message"]) == (commits[0], "first", "its body")
    assert "Link" not in answer.headers


@pytest.fixture(scope="module")
def many(hub: RunningHub) -> list[str]:
    names = [f"hf-many/m{i}" for i in range(5)]
    owner = hub.user("hf-many")
    for name in names:
        hub.create(name, token=owner)
    card = b"---\ntags: [wanted]\nbase_model: org/base\n---\n"
    hub.commit(names[1], {"README.md": card}, token=owner)
    tensor = {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    described = json.dumps(tensor).encode()
    weights = len(described).to_bytes(8, "little") + described + bytes(24)
    hub.commit(names[0], {"README.md": b"# none", "model.safetensors": weights}, token=owner)
    return names


def listed(hub: RunningHub, query: str) -> list[str]:
    names: list[str] = []
    url = f"/api/models?author=hf-many&{query}"
    while url:
        answer = get(hub, url)
        names += [item["id"] for item in answer.json()]
        link = urlsplit(answer.headers.get("Link", "").partition("<")[2].partition(">")[0])
        url = f"{link.path}?{link.query}" if link.path else ""
    return names


def test_lists_are_found_sorted_and_filtered_over_all_pages(
    hub: RunningHub, many: list[str]
) -> None:
    for limit in (1, 2, 5, 100):
        assert listed(hub, f"limit={limit}") == many[::-1]
        assert listed(hub, f"limit={limit}&filter=wanted") == [many[1]]
        by_change = listed(hub, f"limit={limit}&sort=lastModified")
        assert by_change == [many[0], many[1], many[4], many[3], many[2]]
    assert listed(hub, "search=M3") == [many[3]]
    assert listed(hub, "search=many+m2") == [many[2]]


def test_a_list_is_filtered_by_what_is_known_of_models(hub: RunningHub, many: list[str]) -> None:
    for query, expected in {
        "gated=False": many[::-1], "gated=true": [], "inference=warm": [],
        "inference_provider=all": [], "sort=createdAt&direction=-1": many[::-1],
        "num_parameters=min:6": [many[0]], "num_parameters=min:0.006K,max:1B": [many[0]],
        "num_parameters=max:5": [], "num_parameters=min:7": [],
        "filter=base_model:org/base": [many[1]],
        "filter=base_model:finetune:org/base": [many[1]],
        "filter=base_model:adapter:org/base": [],
        "search=many&search=m2": [many[2]],
    }.items():  # fmt: skip
        assert listed(hub, query) == expected, query


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("sort=bogus", 400, ["bogus", "createdAt", "lastModified"]),
        ("sort=createdAt&direction=1", 501, ["direction"]),
        ("apps=vllm", 501, ["apps"]),
        ("gated=maybe", 400, ["gated"]),
        ("num_parameters=7B", 400, ["num_parameters", "min:6B,max:128B"]),
        ("num_parameters=min:x", 400, ["min:6B,max:128B"]),
        ("filter=base_model:child:org/base", 400, ["child", "finetune", "adapter"]),
        ("colour=red", 400, ["colour", "author"]),
        ("cursor=x", 400, ["cursor"]),
    ],
)
def test_what_a_list_cannot_be_asked_is_refused(
    hub: RunningHub, query: str, status: int, words: list[str]
) -> None:
    answer = get(hub, f"/api/models?{query}")
    kind = {400: "invalid_request", 501: "NotImplemented"}[status]
    assert error_of(answer) == (status, kind)
    for word in words:
        assert word in answer.headers["X-Error-Message"]


def test_shares_of_storage_are_of_all_that_is_listed(hub: RunningHub, many: list[str]) -> None:
    token = hub.user("hf-stores")
    hub.create("hf-stores/a", token=token)
    assert get(hub, "/api/settings/repositories", token=token).json()[0]["storagePercent"] == 0
    hub.create("hf-stores/b", token=token)
    hub.commit("hf-stores/a", {"x": b"123"}, token=token)
    hub.commit("hf-stores/b", {"x": b"4"}, token=token)
    found = get(hub, "/api/settings/repositories", token=token).json()
    shares = {item["id"]: (item["storage"], item["storagePercent"]) for item in found}
    assert shares == {"hf-stores/a": (3, 75.0), "hf-stores/b": (1, 25.0)}


def test_a_model_that_is_empty_lacks_files_and_no_more(hub: RunningHub, many: list[str]) -> None:
    name = many[3]
    assert error_of(get(hub, f"/{name}/resolve/main/config.json")) == (404, "EntryNotFound")
    assert error_of(get(hub, f"/{name}/resolve/other/config.json")) == (404, "RevisionNotFound")
    info = get(hub, f"/api/models/{name}").json()
    assert (info["siblings"], "sha" in info) == ([], False)


def test_a_card_that_is_no_yaml_takes_nothing_down(hub: RunningHub) -> None:
    name = "admin/odd-cards"
    hub.create(name)
    for card in (b"---\n: [\n---\n", b"---\n- a\n---\n", b"---\nx: 1\n", b"\xff\xfe", b"",
                 b"---\nx: " + b"[" * 5000 + b"\n---\n", b"---\nbase_model: {a: 1}\n---\n",
                 b"---\n? {a: 1}\n: .nan\n---\n"):  # fmt: skip
        answer = send_commit(hub, name, header(), small("README.md", card + b"\n"))
        assert answer.status == 200, (card[:20], answer.body)
        assert get(hub, f"/api/models/{name}").status == 200
        assert get(hub, "/api/models?search=odd-cards").status == 200


def test_who_asks_is_told_who_they_are(hub: RunningHub) -> None:
    token = hub.user("hf-me", "read")
    me = get(hub, "/api/whoami-v2", token=token).json()
    assert (me["name"], me["auth"]["accessToken"]["role"]) == ("hf-me", "read")
    assert error_of(get(hub, "/api/whoami-v2"))[0] == 401
    assert error_of(get(hub, "/api/whoami-v2", token="dh_nobody"))[0] == 401


def test_a_file_is_there_as_soon_as_it_is_committed(
    hub: RunningHub, model: dict[str, bytes]
) -> None:
    name = "admin/hf-fresh"
    hub.create(name)
    path = next(path for path in model if path.endswith(".safetensors"))
    data = model[path][:-4] + b"abcd"
    send_object(hub, name, data)
    digest = sha256(data).hexdigest()
    line = ("lfsFile", {"path": path, "algo": "sha256", "oid": digest, "size": len(data)})
    assert send_commit(hub, name, header(), line).status == 200
    assert get(hub, f"/{name}/resolve/main/{path}").body == data
    assert get(hub, f"/{name}/resolve/main/{path}", Range="bytes=-4").body == b"abcd"
