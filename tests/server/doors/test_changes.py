"""What other clients change beside files: copies of models, folders, attributes; who is who."""

from hashlib import sha256

import pytest

from deltahub.registry.access import organizations
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.db.models import Membership, User
from deltahub.registry.names import LFS_BYTES
from support.service.hf_door import (
    create_model,
    error_of,
    files_of,
    header,
    large,
    send_commit,
    send_object,
    small,
)
from support.service.hub import RunningHub


def preupload(hub: RunningHub, name: str, *paths: str, **more: object) -> dict[str, str]:
    body = {"files": [{"path": path, "size": 10, "sample": ""} for path in paths], **more}
    where = f"/api/models/{name}/preupload/main"
    answer = hub.call("POST", where, token=hub.admin_token, body=body)
    return {each["path"]: each["uploadMode"] for each in answer.json()["files"]}


def test_a_folder_is_deleted_without_a_slash(hub: RunningHub) -> None:
    name = "admin/folders"
    create_model(hub, name)
    send_commit(hub, name, header(), small("a/b/c", b"c"), small("a/d", b"d"), small("e", b"e"))
    gone = ("deletedFile", {"path": "a/b"}), ("deletedEntry", {"path": "e"})
    assert send_commit(hub, name, header(), *gone).status == 200
    assert files_of(hub, name) == {"a/d": b"d"}
    refused = send_commit(hub, name, header(), ("deletedFile", {"path": "none"}))
    assert error_of(refused) == (404, "EntryNotFound")


def test_the_attributes_of_the_repository_decide_what_lfs_keeps(hub: RunningHub) -> None:
    name = "admin/attributes"
    create_model(hub, name)
    paths = ("a.bin", "a.dat", "deep/b.dat", "deep/c.txt")
    assert preupload(hub, name, *paths)["a.dat"] == "regular"
    text = b"*.dat filter=lfs diff=lfs -text\n# *.txt filter=lfs\ndeep/b.dat -filter\n"
    assert send_commit(hub, name, header(), small(".gitattributes", text)).status == 200
    assert preupload(hub, name, *paths) == {
        "a.bin": "regular", "a.dat": "lfs", "deep/b.dat": "regular", "deep/c.txt": "regular",
    }  # fmt: skip
    # JavaScript clients send those of the commit.
    sent = preupload(hub, name, *paths, gitAttributes="*.txt filter=lfs\n")
    assert (sent["deep/c.txt"], sent["a.dat"]) == ("lfs", "regular")
    assert send_commit(hub, name, header(), small("a.bin", b"small")).status == 200
    assert files_of(hub, name)["a.bin"] == b"small"
    oid = sha256(b"by lfs").hexdigest()
    send_object(hub, name, b"by lfs")
    assert send_commit(hub, name, header(), large("a.dat", b"by lfs")).status == 200
    tree = hub.call("GET", f"/api/models/{name}/tree/main").json()
    shown = {each["path"]: each.get("lfs", {}).get("oid") for each in tree}
    assert (shown["a.dat"], shown["a.bin"]) == (oid, None)
    etag = hub.call("HEAD", f"/{name}/resolve/main/a.dat").headers["ETag"]
    assert etag == f'"{oid}"'


def test_a_large_file_within_a_commit_is_kept_as_a_large_file(hub: RunningHub) -> None:
    name = "admin/large-within"
    create_model(hub, name)
    data = bytes(LFS_BYTES)
    answer = send_commit(hub, name, header(), small("w.txt", data))
    assert answer.status == 200, answer.body
    etag = hub.call("HEAD", f"/{name}/resolve/main/w.txt").headers["ETag"]
    assert etag == f'"{sha256(data).hexdigest()}"'


def test_hostile_attributes_are_refused_at_once(hub: RunningHub) -> None:
    name = "admin/hostile-attributes"
    create_model(hub, name)
    body = {"files": [{"path": "a", "size": 1}], "gitAttributes": "aaaa\n" * 14_000}
    where = f"/api/models/{name}/preupload/main"
    answer = hub.call("POST", where, token=hub.admin_token, body=body)
    assert error_of(answer) == (413, "limit_exceeded")
    # Nor do those of the branch lock it: the sentence has a way out.
    for text in (b"a " * 40_000, b"*.b filter=lfs\n" * 1001):
        send_commit(hub, name, header(), small(".gitattributes", text))
        answer = hub.call("POST", where, token=hub.admin_token, body={"files": body["files"]})
        assert error_of(answer) == (413, "limit_exceeded")
        assert "delete it" in answer.json()["error"]
    gone = ("deletedFile", {"path": ".gitattributes"})
    assert send_commit(hub, name, header(), gone).status == 200
    assert preupload(hub, name, "a") == {"a": "regular"}


def test_a_card_that_lfs_keeps_names_the_base_too(hub: RunningHub) -> None:
    name, base = "admin/lfs-card", "admin/lfs-card-base"
    create_model(hub, base)
    create_model(hub, name)
    card = f"---\nbase_model: {base}\n---\n".encode()
    send_object(hub, name, card)
    assert send_commit(hub, name, header(), large("README.md", card)).status == 200
    shown = hub.call("GET", f"/v1/repositories/{name}/info").json()["base"]
    assert shown["declared"] == base


def test_a_model_is_duplicated_in_one_call(hub: RunningHub) -> None:
    name = "admin/original"
    create_model(hub, name, private=True)
    send_commit(hub, name, header(), small("w.bin", b"weights"), small("d/a.txt", b"a"))
    where = f"/api/models/{name}/duplicate"

    def duplicate(to: str, **more: object) -> tuple[int, str]:
        body = {"repository": to, **more}
        answer = hub.call("POST", where, token=hub.admin_token, body=body)
        return answer.status, answer.body.decode()

    assert duplicate("admin/copy") == (200, f'{{"url":"{hub.url}/admin/copy","name":"admin/copy"}}')
    copy = hub.call("GET", "/api/models/admin/copy", token=hub.admin_token).json()
    assert copy["private"]
    assert {each["rfilename"] for each in copy["siblings"]} >= {"w.bin", "d/a.txt"}
    got = hub.call("GET", "/admin/copy/resolve/main/w.bin", token=hub.admin_token)
    assert got.body == b"weights"
    assert duplicate("admin/copy")[0] == 409
    status, body = duplicate("admin/open", visibility="public")
    assert (status, "download it" in body) == (409, True)
    assert hub.call("GET", "/api/models/admin/open", token=hub.admin_token).status == 404


def test_a_duplicate_keeps_role_base_and_the_way_in_which_files_came(hub: RunningHub) -> None:
    base, name, copy = "admin/dup-base", "admin/dup-tuned", "admin/dup-copy"
    create_model(hub, base)
    commit = hub.call("GET", f"/api/models/{base}").json()["sha"]
    create_model(hub, name)
    with hub.registry.db.write() as session:
        load_repository(session, None, name).role = "merge"  # as a job of the hub makes it
    hub.commit(name, {"config.json": b"{}"}, base=base)
    send_object(hub, name, b"by lfs")
    send_commit(hub, name, header(), large("a.dat", b"by lfs"), small("b.bin", b"within"))
    # The base's head moves on, and its name goes to another model.
    send_commit(hub, base, header(), small("c", b"c"))
    body = {"fromRepo": base, "toRepo": f"{base}-now"}
    hub.call("POST", "/api/repos/move", token=hub.admin_token, body=body)
    create_model(hub, base)
    where = f"/api/models/{name}/duplicate"
    made = hub.call("POST", where, token=hub.admin_token, body={"repository": copy})
    assert made.status == 200, made.body
    of_name, of_copy = (
        hub.call("GET", f"/v1/repositories/{each}/info").json() for each in (name, copy)
    )
    with hub.registry.db.read() as session:
        assert load_repository(session, None, copy).role == "merge"
    assert (of_copy["base"]["declared"], of_copy["base"]["commit"]) == (f"{base}-now", commit)
    assert of_copy["base"]["declared"] == of_name["base"]["declared"]
    trees = [hub.call("GET", f"/api/models/{each}/tree/main").json() for each in (name, copy)]
    assert trees[0] == trees[1]


def test_a_duplicate_says_nothing_of_a_base_that_its_maker_may_not_read(hub: RunningHub) -> None:
    token = hub.user("dup-bob")
    base, name, copy = "admin/dup-hidden", "admin/dup-shown", "dup-bob/copy"
    create_model(hub, base)
    create_model(hub, name)
    hub.commit(name, {"config.json": b"{}"}, base=base)
    body = {"fromRepo": base, "toRepo": f"{base}-now"}
    hub.call("POST", "/api/repos/move", token=hub.admin_token, body=body)
    hidden = {"private": True}
    hub.call("PUT", f"/api/models/{base}-now/settings", token=hub.admin_token, body=hidden)
    where = f"/api/models/{name}/duplicate"
    assert hub.call("POST", where, token=token, body={"repository": copy}).status == 200
    for asker in (token, hub.admin_token):
        shown = hub.call("GET", f"/v1/repositories/{copy}/info", token=asker).json()["base"]
        assert (shown["declared"], shown["commit"]) == (base, None)


def test_large_files_are_listed_with_the_branch_that_leads_to_them(hub: RunningHub) -> None:
    name = "admin/refs-of-files"
    create_model(hub, name)
    for data in (b"m", b"d"):
        send_object(hub, name, data)
    send_commit(hub, name, header(), large("main.bin", b"m"))
    hub.call("POST", f"/api/models/{name}/branch/dev", token=hub.admin_token, body={})
    send_commit(hub, name, header(), large("dev.bin", b"d"), branch="dev")
    send_commit(hub, name, header(), ("deletedFile", {"path": "main.bin"}))
    files = hub.call("GET", f"/api/models/{name}/lfs-files", token=hub.admin_token).json()
    refs = {each["filename"]: each["ref"] for each in files}
    assert refs == {"main.bin": "refs/heads/main", "dev.bin": "refs/heads/dev"}


def test_users_and_organizations_are_shown_to_those_who_may_know(hub: RunningHub) -> None:
    token = hub.user("hf-ann")
    organizations.create_organization(hub.registry, "hf-lab")
    organizations.add_member(hub.registry, "hf-lab", "hf-ann", "write")
    hub.create("hf-lab/m", token=token)
    own = hub.call("GET", "/api/users/HF-ann/overview", token=token).json()
    assert (own["user"], own["numModels"]) == ("hf-ann", 0)
    assert [each["name"] for each in own["orgs"]] == ["hf-lab"]
    lab = hub.call("GET", "/api/organizations/hf-lab/overview").json()
    assert (lab["name"], lab["numModels"], "numUsers" in lab) == ("hf-lab", 1, False)
    members = hub.call("GET", "/api/organizations/hf-lab/members", token=token).json()
    assert [(each["user"], each["role"]) for each in members] == [("hf-ann", "write")]
    hub.create("hf-lab/hidden", private=True, token=token)
    for asker, n_models in ((token, 2), (None, 1)):
        lab = hub.call("GET", "/api/organizations/HF-LAB/overview", token=asker).json()
        assert lab["numModels"] == n_models
    own = hub.call("GET", "/api/organizations/HF-lab/settings/repositories", token=token).json()
    assert {each["id"] for each in own} == {"hf-lab/m", "hf-lab/hidden"}
    for path in ("quota", "adapter/rule", "upgrades/policy"):
        assert hub.call("GET", f"/v1/namespaces/HF-Lab/{path}", token=token).status == 200, path
    none = hub.call("GET", "/v1/namespaces/HF-Lab/retention", token=token)
    assert (none.status, none.code) == (404, "entry_not_found")
    for path in ("organizations/hf-lab/members", "organizations/hf-ann/overview",
                 "users/nobody/overview"):  # fmt: skip
        assert hub.call("GET", f"/api/{path}").status == 404


def test_many_members_are_listed_page_by_page(hub: RunningHub) -> None:
    token = hub.user("many-0")
    lab = organizations.create_organization(hub.registry, "many-lab")
    organizations.add_member(hub.registry, "many-lab", "many-0", "admin")
    with hub.registry.db.write() as session:
        others = [User(name=f"many-{n}") for n in range(1, 1010)]
        session.add_all(others)
        session.flush()
        session.add_all(
            Membership(namespace_id=lab.id, user_id=each.id, role="read") for each in others
        )
    shown = hub.call("GET", "/api/organizations/many-lab/overview", token=token).json()
    assert shown["numUsers"] == 1010
    first = hub.call("GET", "/api/organizations/MANY-lab/members", token=token)
    link = first.headers["Link"].removeprefix("<").partition(">")[0]
    second = hub.call("GET", link.removeprefix(hub.url), token=token)
    assert "Link" not in second.headers
    names = [each["user"] for page in (first, second) for each in page.json()]
    assert names == sorted({f"many-{n}" for n in range(1010)})


def test_a_commit_of_pointers_is_warned_of(hub: RunningHub) -> None:
    create_model(hub, "admin/pointers")
    oid = "a" * 64
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 5000\n".encode()
    weights = small("a.safetensors", text), small("b.safetensors", text), small("c.txt", text)
    answer = send_commit(hub, "admin/pointers", header(), *weights)
    warning = answer.headers["X-HF-Warning"]
    assert warning.startswith("lfs-pointers; a.safetensors and 1 more files: a Git LFS pointer")
    fine = send_commit(hub, "admin/pointers", header(), small("a.safetensors", b"weights"))
    assert "X-HF-Warning" not in fine.headers
    info = hub.call("GET", "/v1/repositories/admin/pointers/info").json()
    notes = {file["path"]: file["note"] for file in info["files"]}
    assert "git lfs pull" in notes["b.safetensors"]


@pytest.mark.parametrize(
    ("card", "word"),
    [
        ("base_model: not a name", "base_model"),
        ("license: [1, {a: b}]", "license"),
        ("library_name: [x]", "library_name"),
        ("model-index: {}", "model-index"),
        ("model-index:\n- name: a\n  results:\n  - task: {}", "task.type"),
        ("model-index:\n- results: []", "name"),
    ],
)
def test_wrong_fields_of_a_card_are_refused(hub: RunningHub, card: str, word: str) -> None:
    body = {"content": f"---\n{card}\n---\n", "repoType": "model"}
    answer = hub.call("POST", "/api/validate-yaml", body=body)
    assert answer.status == 400
    assert word in answer.json()["errors"][0]["message"]


def test_a_card_without_fields_is_warned_of_and_a_right_one_is_not(hub: RunningHub) -> None:
    metric = "{type: accuracy, value: 0.9}"
    result = f"task: {{type: t}}\n    dataset: {{type: d, name: D}}\n    metrics: [{metric}]"
    for card, warns in (
        ("# words", True),
        ("---\nlicense: other\n---\n", True),
        ("---\nlicense: apache2\n---\n", True),
        ("---\nlicense: mit\nlanguage: english\n---\n", True),
        ("---\nlicense: mit\nlanguage: [pt-BR, code]\n---\n", False),
        ("---\nlicense: mit\nlanguage: [no, en]\nbase_model: gpt2\ntags: [a, 2.0]\n---\n", False),
        (f"---\nmodel-index:\n- name: a\n  results:\n  - {result}\n---\n", False),
    ):
        answer = hub.call("POST", "/api/validate-yaml", body={"content": card})
        assert (answer.status, bool(answer.json()["warnings"])) == (200, warns), card


def test_an_answer_names_its_request_and_commits_come_formatted(hub: RunningHub) -> None:
    name = "admin/formatted"
    create_model(hub, name)
    send_commit(hub, name, header("<b> & title"), small("a", b"a"))
    path = f"/api/models/{name}/commits/main?expand[]=formatted"
    answer = hub.call("GET", path, headers={"X-Amzn-Trace-Id": "of-this-client-1"})
    assert answer.headers["X-Request-Id"] == "of-this-client-1"
    assert answer.json()[0]["formatted"]["title"] == "&lt;b&gt; &amp; title"
    for wrong in ("/api/models/admin/none", "/nothing/at/all", "/api/none"):
        assert hub.call("GET", wrong).headers["X-Request-Id"]


def test_likes_and_trends_are_the_order_of_downloads_and_unknown_properties_are_left_out(
    hub: RunningHub,
) -> None:
    name = "admin/properties"
    create_model(hub, name)
    card = b"---\nbase_model: org/base\n---\n"
    send_commit(hub, name, header(), small("README.md", card))

    def listed(query: str) -> list[str]:
        answer = hub.call("GET", f"/api/models?author=admin&{query}&limit=1000")
        return [each["id"] for each in answer.json()]

    for sort in ("likes", "trending", "trendingScore", "trending_score"):
        assert listed(f"sort={sort}") == listed("sort=downloads")
    query = "expand=sha&expand=bogus&expand=gguf&expand=baseModels&expand=trendingScore"
    shown = hub.call("GET", f"/api/models/{name}?{query}").json()
    assert set(shown) == {"_id", "id", "sha", "baseModels", "trendingScore"}
    assert shown["baseModels"] == {"relation": "finetune", "models": [{"id": "org/base"}]}
    found = hub.call("GET", f"/api/models?author=admin&limit=1000&{query}").json()
    assert shown in found
