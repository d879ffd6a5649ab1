"""Writes of Hugging Face clients: commits, large files before them, models and their names."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha1
from typing import Any

import pytest

from deltahub.registry.db.models import Revision
from support.service.hf_door import (
    batch,
    create_model,
    digest_of,
    error_of,
    files_of,
    header,
    large,
    send_commit,
    send_object,
    small,
)  # fmt: skip
from support.service.hub import RunningHub


@pytest.fixture
def name(hub: RunningHub, request: pytest.FixtureRequest) -> str:
    name = "admin/w-" + sha1(request.node.name.encode()).hexdigest()[:12]
    answer = create_model(hub, name)
    assert answer.status == 200, answer.body
    assert answer.json()["url"] == f"{hub.url}/{name}"
    return name


def test_a_commit_adds_replaces_copies_and_deletes(hub: RunningHub, name: str) -> None:
    weights = os.urandom(100_000)
    send_object(hub, name, weights)
    first = send_commit(
        hub, name, header(), small("a.txt", b"a"), small("empty.txt", b""),
        large("w.safetensors", weights), small("old/1.txt", b"1"), small("old/deep/2.txt", b"2"),
    )  # fmt: skip
    made = first.json()
    assert (first.status, made["success"], len(made["commitOid"])) == (200, True, 40)
    assert made["commitUrl"] == f"{hub.url}/{name}/commit/{made['commitOid']}"
    copy = "lfsFile", {"path": "copy.safetensors", "algo": "sha256", "oid": digest_of(weights)}
    second = send_commit(
        hub, name, header(parentCommit=made["commitOid"]), copy, small("a.txt", b"b"),
        ("deletedFile", {"path": "empty.txt"}), ("deletedFolder", {"path": "old/"}),
    )  # fmt: skip
    assert second.status == 200, second.body
    assert files_of(hub, name) == {
        "a.txt": b"b", "w.safetensors": weights, "copy.safetensors": weights,
    }  # fmt: skip
    log = hub.call("GET", f"/api/models/{name}/commits/main").json()
    assert [commit["id"] for commit in log][:2] == [
        second.json()["commitOid"], made["commitOid"],
    ]  # fmt: skip


def test_summary_and_description_are_the_message(hub: RunningHub, name: str) -> None:
    send_commit(
        hub, name, ("header", {"summary": "one", "description": "two\nthree"}), small("a", b"")
    )
    newest = hub.call("GET", f"/api/models/{name}/commits/main").json()[0]
    assert (newest["title"], newest["message"]) == ("one", "two\nthree")


def test_lines_are_read_however_they_are_cut(hub: RunningHub, name: str) -> None:
    # The body is larger than the blocks in which it is read; some lines span several blocks.
    files = {f"f{i}.txt": os.urandom(200_000 + 300_000 * (i % 3)) for i in range(9)}
    answer = send_commit(hub, name, header(), *(small(p, data) for p, data in files.items()))
    assert answer.status == 200, answer.body
    assert files_of(hub, name) == files


@pytest.mark.parametrize(
    ("items", "status", "kind"),
    [
        ([header(parentCommit="0" * 40), small("a", b"")], 412, "ref_moved"),
        ([header(), large("a.bin", b"never sent")], 404, "upload_not_found"),
        ([header(), ("deletedFile", {"path": "none"})], 404, "EntryNotFound"),
        ([header(), ("deletedFolder", {"path": "none"})], 404, "EntryNotFound"),
        ([header(), small("../a", b"")], 422, "invalid_path"),
        ([header(), small("a", b"1"), small("a", b"2")], 422, "invalid_path"),
        ([header()], 422, "invalid_request"),
        ([header(), ("file", {"path": "a", "content": "%%", "encoding": "base64"})],
         422, "invalid_request"),
        ([header(), ("file", {"path": "a", "content": "a", "encoding": "rot13"})],
         422, "invalid_request"),
        ([header(), ("file", {"path": "a"})], 422, "invalid_request"),
        ([header(), ("lfsFile", {"path": "a", "oid": "x", "size": 1})], 422, "invalid_request"),
        ([header(), ("lfsFile", {"path": "a", "oid": 1, "size": 1})], 422, "invalid_request"),
        ([header(), ("lfsFile", {"path": "a", "oid": "0" * 64, "size": "1"})],
         422, "invalid_request"),
        ([header(), ("lfsFile", {"path": "a", "oid": "0" * 64, "size": 1, "algo": "md5"})],
         422, "invalid_request"),
        ([header(), ("magic", {"path": "a"})], 501, "NotImplemented"),
        ([("header", [1]), small("a", b"")], 422, "invalid_request"),
    ],
)  # fmt: skip
def test_a_commit_that_cannot_be_changes_nothing(
    hub: RunningHub, name: str, items: list[Any], status: int, kind: str
) -> None:
    before = hub.call("GET", f"/api/models/{name}").json()["sha"]
    answer = send_commit(hub, name, *items)
    assert error_of(answer) == (status, kind), answer.body
    assert hub.call("GET", f"/api/models/{name}").json()["sha"] == before


def test_a_body_that_is_no_json_is_refused(hub: RunningHub, name: str) -> None:
    path = f"/api/models/{name}/commit/main"
    for body in (b"no json", b"\xff\xfe\n", b'{"key": "file"}', b"[]\n", b'"a"', b"[" * 100_000):
        answer = hub.call("POST", path, token=hub.admin_token, body=body)
        assert error_of(answer) == (422, "invalid_request"), body[:20]
    line = b'{"key": "file", "value": {"content": "' + b"a" * (16 << 20)
    answer = hub.call("POST", path, token=hub.admin_token, body=line)
    assert error_of(answer) == (413, "limit_exceeded")


def test_a_body_that_is_too_large_is_refused_in_words_that_clients_print(
    hub: RunningHub, name: str
) -> None:
    body = {"files": [{"path": "a" * 900, "size": 1}] * 200}
    answer = hub.call(
        "POST", f"/api/models/{name}/preupload/main", token=hub.admin_token, body=body
    )
    assert error_of(answer) == (413, "limit_exceeded")
    assert "larger than the limit" in answer.headers["X-Error-Message"]


def test_of_two_commits_at_once_both_are_kept_or_one_is_told(hub: RunningHub, name: str) -> None:
    head = hub.call("GET", f"/api/models/{name}").json()["sha"]

    def commit(i: int) -> int:
        return send_commit(hub, name, header(parentCommit=head), small(f"{i}", b"")).status

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(commit, range(4))) == [200, 412, 412, 412]
    with ThreadPoolExecutor(4) as pool:
        free = pool.map(lambda i: send_commit(hub, name, header(), small(f"n{i}", b"")), range(4))
        assert [answer.status for answer in free] == [200] * 4
    assert len(files_of(hub, name)) == 5


def test_who_may_not_write_is_told_so(hub: RunningHub, name: str) -> None:
    reader, stranger = hub.user(f"r-{name[-6:]}", "read"), hub.user(f"s-{name[-6:]}")
    for token in (reader, stranger):
        assert send_commit(hub, name, header(), small("a", b""), token=token).status == 403
        assert batch(hub, name, ("0" * 64, 1), token=token).status == 403
        assert create_model(hub, f"admin/x{name[-6:]}", token=token).status == 403
    answer = hub.call("POST", f"/api/models/{name}/commit/main", body=b"{}")
    assert error_of(answer) == (401, "unauthorized")


def test_somebody_elses_upload_cannot_be_committed(hub: RunningHub, name: str) -> None:
    thief = hub.user(f"t-{name[-6:]}")
    secret = os.urandom(5000)
    send_object(hub, name, secret)
    assert create_model(hub, f"t-{name[-6:]}/mine", token=thief).status == 200
    (item,) = batch(hub, f"t-{name[-6:]}/mine", (digest_of(secret), 5000), token=thief).json()[
        "objects"
    ]
    assert "actions" in item  # as if the hub did not have the file
    answer = send_commit(hub, f"t-{name[-6:]}/mine", header(), large("x.bin", secret), token=thief)
    assert error_of(answer) == (404, "upload_not_found")


def test_a_file_can_be_uploaded_where_only_another_branch_is(hub: RunningHub) -> None:
    other, token = "admin/w-only-a-branch", hub.admin_token
    hub.create(other)
    sha256 = hub.upload(b"1", token)
    add = {"op": "add", "path": "a.txt", "sha256": sha256, "size": 1}
    body: dict[str, Any] = {"ref": "v.1", "operations": [add]}
    assert (
        hub.call("POST", f"/v1/repositories/{other}/commits", token=token, body=body).status < 300
    )
    body = {"files": [{"path": "b.txt", "size": 1, "sample": ""}]}
    preupload = hub.call("POST", f"/api/models/{other}/preupload/main", token=token, body=body)
    assert (preupload.status, preupload.json()["files"][0]["uploadMode"]) == (200, "regular")
    assert send_commit(hub, other, header(), small("b.txt", b"2")).status == 200
    assert files_of(hub, other) == {"b.txt": b"2"}


def test_preupload_says_how_to_send_and_what_is_there(hub: RunningHub, name: str) -> None:
    weights = os.urandom(1000)
    send_object(hub, name, weights)
    send_commit(hub, name, header(), small("a.txt", b"a"), large("w.bin", weights))
    files = [("a.txt", 1), ("w.bin", 1000), ("new.safetensors", 10), ("huge.txt", 11 << 20)]
    body = {"files": [{"path": path, "size": size, "sample": ""} for path, size in files]}
    path = f"/api/models/{name}/preupload/main"
    answer = hub.call("POST", path, token=hub.admin_token, body=body).json()
    assert answer["commitOid"] == hub.call("GET", f"/api/models/{name}").json()["sha"]
    shown = {item["path"]: (item["uploadMode"], item.get("oid")) for item in answer["files"]}
    assert shown == {
        "a.txt": ("regular", sha1(b"blob 1\0a").hexdigest()),
        "w.bin": ("lfs", digest_of(weights)),
        "new.safetensors": ("lfs", None),
        "huge.txt": ("lfs", None),
    }
    refused = hub.call("POST", f"{path}?create_pr=1", token=hub.admin_token, body=body)
    assert error_of(refused) == (501, "NotImplemented")


def test_what_gitignore_names_is_left_out(hub: RunningHub, name: str) -> None:
    files = [{"path": path, "size": 1} for path in ("a.tmp", "keep.tmp", "deep/b.tmp", "c.txt")]
    path = f"/api/models/{name}/preupload/main"

    def left_out(**more: str) -> list[str]:
        body = {"files": files, **more}
        answer = hub.call("POST", path, token=hub.admin_token, body=body).json()
        return [item["path"] for item in answer["files"] if item["shouldIgnore"]]

    assert left_out() == []
    assert left_out(gitIgnore="*.tmp\n!keep.tmp\n") == ["a.tmp", "deep/b.tmp"]
    send_commit(hub, name, header(), small(".gitignore", b"deep/\n"))
    assert left_out() == ["deep/b.tmp"]
    assert left_out(gitIgnore="") == []


def test_the_cards_base_is_the_models_base(hub: RunningHub, name: str) -> None:
    card = b"---\nbase_model: admin/some-base\n---\n"
    for body, base in ((card, "admin/some-base"), (b"# silent", "admin/some-base"),
                       (b"---\nbase_model: [admin/b2, x/y]\n---\n", "admin/b2")):  # fmt: skip
        made = send_commit(hub, name, header(), small("README.md", body)).json()
        with hub.registry.db.read() as session:
            found = session.query(Revision).filter_by(commit=made["commitOid"]).one()
            assert found.declared_base == base


def test_an_adapter_names_its_base_where_its_card_does_not(hub: RunningHub, name: str) -> None:
    base, other = f"{name}-base", f"{name}-other"
    for each in (base, other):
        assert create_model(hub, each, private=each == other).status == 200

    def config(named: object) -> tuple[str, dict[str, Any]]:
        text = json.dumps({"peft_type": "LORA", "base_model_name_or_path": named})
        return small("adapter_config.json", text.encode())

    def shown(token: str | None = None) -> tuple[list[str], Any]:
        info = hub.call("GET", f"/api/models/{name}", token=token).json()
        tags = [tag for tag in info["tags"] if tag.startswith("base_model:")]
        return sorted(tags), info.get("cardData", {}).get("base_model")

    def declared() -> str | None:
        with hub.registry.db.read() as session:
            commit = hub.call("GET", f"/api/models/{name}").json()["sha"]
            return session.query(Revision).filter_by(commit=commit).one().declared_base

    # Folders and values that are no names declare no base, and are no error.
    for i, named in enumerate(("/data/base", "./base", "../base", "base", "", 7, None, "a/b/c")):
        assert send_commit(hub, name, header(), config(named), small("n", b"%d" % i)).status == 200
        assert (declared(), shown()) == (None, ([], None))
    for text in (b"no json", b"[1]", b"[" * 100_000):
        sent = send_commit(hub, name, header(), small("adapter_config.json", text))
        assert (sent.status, declared(), shown()) == (200, None, ([], None))
    # No model has this name: it may be a folder, or a model that comes later.
    send_commit(hub, name, header(), config("out/checkpoint-500"))
    assert shown() == ([], None)
    send_commit(hub, name, header(), config(base), small("README.md", b"---\ntags: [x]\n---\n"))
    tags = [f"base_model:{base}", f"base_model:adapter:{base}"]
    assert (declared(), shown()) == (base, (sorted(tags), base))
    # A caller who may not read the base does not see it.
    send_commit(hub, name, header(), config(other))
    assert (declared(), shown()) == (other, ([], None))
    assert shown(hub.admin_token)[1] == other
    # A card counts before the configuration, in this commit or an earlier one.
    card = small("README.md", f"---\nbase_model: {base}\n---\n".encode())
    send_commit(hub, name, header(), config(other), card)
    assert (declared(), shown()) == (base, (sorted(tags), base))
    send_commit(hub, name, header(), config("x/y"))
    assert (declared(), shown()) == (base, (sorted(tags), base))


# ---- models ---------------------------------------------------------------------------------


def test_a_model_is_made_with_its_first_commit_or_not_at_all(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "admin/w-made-at-once"

    def dies(point: str) -> None:
        raise OSError(f"dies at {point}")

    with monkeypatch.context() as patch:
        patch.setattr("deltahub.registry.catalog.commit.failpoints.reached", dies)
        assert create_model(hub, other).status == 500
    path = f"/api/models/{other}"
    assert hub.call("GET", path, token=hub.admin_token).status == 404
    assert create_model(hub, other).status == 200
    assert len(hub.call("GET", path, token=hub.admin_token).json()["sha"]) == 40


def test_a_model_that_exists_is_said_to(hub: RunningHub, name: str) -> None:
    again = create_model(hub, name)
    assert again.status == 409
    assert again.json()["url"] == f"{hub.url}/{name}"
    assert again.json()["name"] == name
    assert create_model(hub, "admin/data", type="dataset").status == 501
    (only,) = hub.call("GET", f"/api/models/{name}").json()["siblings"]
    assert only["rfilename"] == ".gitattributes"


def test_branches_and_tags_come_and_go(hub: RunningHub, name: str) -> None:
    head = hub.call("GET", f"/api/models/{name}").json()["sha"]
    for path, body in ((f"/api/models/{name}/branch/a%2Fb", {}),
                       (f"/api/models/{name}/tag/main", {"tag": "v1"})):  # fmt: skip
        statuses = [
            hub.call("POST", path, token=hub.admin_token, body=body).status for _ in range(2)
        ]
        assert statuses == [200, 409]
    refs = hub.call("GET", f"/api/models/{name}/refs").json()
    assert {ref["name"]: ref["targetCommit"] for ref in refs["branches"]} == {
        "main": head, "a/b": head,
    }  # fmt: skip
    assert refs["tags"] == [{"name": "v1", "ref": "refs/tags/v1", "targetCommit": head}]
    made = send_commit(hub, name, header(), small("b.txt", b"b"), branch="a%2Fb")
    assert made.status == 200
    assert files_of(hub, name, "a%2Fb") == {"b.txt": b"b"}
    assert files_of(hub, name) == {}
    for path in (f"/api/models/{name}/branch/a%2Fb", f"/api/models/{name}/tag/v1"):
        assert hub.call("DELETE", path, token=hub.admin_token).status == 200
        assert hub.call("DELETE", path, token=hub.admin_token).status == 404
    assert len(hub.call("GET", f"/api/models/{name}/refs").json()["branches"]) == 1


def test_a_tag_is_no_branch_to_write_to(hub: RunningHub, name: str) -> None:
    send_commit(hub, name, header(), small("a.txt", b"a"))
    paths = {kind: f"/api/models/{name}/{kind}" for kind in ("branch", "tag", "preupload")}
    call = partial(hub.call, "POST", token=hub.admin_token)
    assert call(f"{paths['tag']}/main", body={"tag": "t1"}).status == 200
    assert call(f"{paths['branch']}/dev", body={}).status == 200
    sent = {"files": [{"path": "b.bin", "size": 9, "sample": ""}]}
    for answer, sentence in (
        (call(f"{paths['preupload']}/t1", body=sent), f"t1 is a tag of {name}, which stays"),
        (send_commit(hub, name, header(), small("b", b"b"), branch="t1"), "t1 is a tag of"),
        (call(f"{paths['branch']}/t1", body={}), "a branch cannot have its name"),
        (call(f"{paths['tag']}/main", body={"tag": "dev"}), "a tag cannot have its name"),
    ):
        assert error_of(answer) == (409, "conflict")
        assert sentence in answer.headers["X-Error-Message"]
    assert call(f"{paths['tag']}/dev", body={"tag": "main"}).status == 422
    assert files_of(hub, name, "t1") == {"a.txt": b"a"}
    body = {"ref": "t1", "operations": [{"op": "delete", "path": "a.txt"}]}
    refused = call(f"/v1/repositories/{name}/commits", body=body)
    assert (refused.status, refused.json()["error"]["code"]) == (409, "conflict")


def test_a_model_is_hidden_and_shown_again(hub: RunningHub, name: str) -> None:
    send_commit(hub, name, header(), small("a.txt", b"a"))
    path = f"/api/models/{name}/settings"
    secret = os.urandom(400)
    for hide, show in (({"private": True}, {"private": False}),
                       ({"visibility": "private"}, {"visibility": "public"})):  # fmt: skip
        answer = hub.call("PUT", path, token=hub.admin_token, body=hide)
        assert (answer.status, answer.json()["private"]) == (200, True)
        assert hub.call("GET", f"/api/models/{name}").status == 404
        assert send_commit(hub, name, header(), small("b.txt", secret)).status == 200
        stranger = hub.user(f"v-{name[-6:]}-{len(hide)}-{next(iter(hide))}")
        assert hub.call("PUT", path, token=stranger, body=show).status == 404
        assert files_of(hub, name) == {"a.txt": b"a", "b.txt": secret}
        answer = hub.call("PUT", path, token=hub.admin_token, body=show)
        assert (answer.status, answer.json()["private"]) == (200, False)
        assert hub.call("GET", f"/api/models/{name}").json()["private"] is False
        assert hub.call("GET", f"/{name}/resolve/main/b.txt").body == secret


def test_a_card_is_checked_before_it_is_committed(hub: RunningHub) -> None:
    good = hub.call("POST", "/api/validate-yaml", body={"content": "---\na: 1\n---\n"})
    assert (good.status, good.json()) == (200, {"errors": [], "warnings": []})
    bad = hub.call("POST", "/api/validate-yaml", body={"content": "---\na: [\n---\n"})
    assert bad.status == 400
    assert json.loads(bad.body)["errors"][0]["message"]
