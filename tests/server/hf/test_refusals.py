"""Refusals of Hugging Face clients: the error kind, and the sentence with the way out."""

import os

import pytest

from support.service.hf_door import (
    create_model,
    digest_of,
    error_of,
    files_of,
    header,
    send_commit,
    send_object,
    small,
)  # fmt: skip
from support.service.hub import Answer, RunningHub

COMMIT = "0" * 40


def sentence(answer: Answer) -> str:
    """The sentence that the client prints; it takes the header if there is no body."""
    shown = answer.headers["X-Error-Message"]
    if answer.body:
        assert answer.json()["error"].encode("ascii", "backslashreplace").decode() == shown
    return shown


@pytest.mark.parametrize(
    "call",
    [
        "GET /api/models/gpt2",
        "GET /api/models/gpt2?expand=sha",
        "GET /api/models/gpt2/revision/main",
        "GET /api/models/gpt2/tree/main",
        "GET /api/models/gpt2/tree/main/refs",
        "GET /api/models/gpt2/tree/refs",
        "GET /api/models/gpt2/refs",
        "GET /api/models/gpt2/commits/main",
        "GET /api/models/gpt2/auth-check",
        "GET /api/models/gpt2/auth-check/write",
        "GET /api/models/gpt2/lfs-files",
        "GET /api/models/gpt2/xet-read-token/main",
        "GET /api/models/gpt2/safetensors-metadata/model.safetensors.index.json",
        "POST /api/models/gpt2/paths-info/main",
        "POST /api/models/gpt2/preupload/main",
        "PUT /api/models/gpt2/settings",
        "GET /gpt2/resolve/main/config.json",
        "GET /gpt2/resolve/main/a/b/c.json",
        "HEAD /gpt2/resolve/dev%2Fx/config.json",
    ],
)
def test_a_name_alone_is_no_model_and_says_how_names_are(hub: RunningHub, call: str) -> None:
    method, path = call.split()
    answer = hub.call(method, path)
    assert error_of(answer) == (404, "RepoNotFound")
    assert "gpt2" in sentence(answer)
    assert "NAMESPACE/NAME" in sentence(answer)


def test_what_is_no_models_path_is_just_not_there(hub: RunningHub) -> None:
    for path in ("/api/agent-harnesses", "/api/models/a/b/none", "/cas/none",
                 "/admin/b/raw/%01%0D%0A%7F%C3%A5"):  # fmt: skip
        assert error_of(hub.call("GET", path)) == (404, "not_found"), path
    assert hub.call("GET", "/docs-assets/none").status == 404
    for path in ("/v1/none", "/.well-known/acme"):
        assert hub.call("GET", path).json()["error"]["code"] == "not_found", path


def test_of_other_kinds_there_is_none_here(hub: RunningHub) -> None:
    # With this kind a client returns False or shows the sentence. After 501 a client that downloads
    # reports a broken connection.
    for kind in ("dataset", "space"):
        for path in (f"/{kind}s/a/b/resolve/main/x", f"/api/{kind}s/a/b",
                     f"/api/{kind}s/a/b/revision/main", f"/api/{kind}s/alone"):  # fmt: skip
            for method in ("GET", "HEAD"):
                answer = hub.call(method, path)
                assert error_of(answer) == (404, "RepoNotFound"), path
                assert f"no {kind}s" in sentence(answer)
        for call in (f"GET /api/{kind}s", f"POST /api/{kind}s/a/b/commit/main"):
            answer = hub.call(*call.split())
            assert error_of(answer) == (501, "NotImplemented"), call
            assert f"no {kind}s" in sentence(answer)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        ("GET /api/models/a/b/likers", "likes"),
        ("GET /api/users/admin/likes", "likes"),
        ("POST /api/models/a/b/like", "likes"),
        ("GET /api/models-tags-by-type", "tags"),
        ("GET /api/users/admin/followers", "follows"),
        ("GET /api/organizations/admin/followers", "follows"),
        ("GET /a/b/ask-access", "gated"),
        ("GET /buckets/a/b/resolve/x", "buckets"),
        ("GET /api/buckets/admin", "buckets"),
        ("POST /api/buckets/admin/b", "buckets"),
        ("GET /api/kernels/a/b", "kernels"),
        ("GET /api/models/a/b/discussions/1", "discussions"),
    ],
)
def test_what_this_hub_does_not_do_says_so(hub: RunningHub, call: str, word: str) -> None:
    method, path = call.split()
    answer = hub.call(method, path)
    assert error_of(answer) == (501, "NotImplemented")
    assert word in sentence(answer)


def test_git_and_registries_of_containers_are_told_what_to_do(hub: RunningHub) -> None:
    for path in ("/admin/any.git/info/refs?service=git-upload-pack", "/admin/any/info/refs",
                 "/datasets/admin/any/info/refs"):  # fmt: skip
        answer = hub.call("GET", path)
        assert (answer.status, answer.headers["Content-Type"][:10]) == (501, "text/plain")
        assert b"hf download admin/any`" in answer.body
    for path in ("/v2/", "/v2/admin/any/manifests/latest"):
        answer = hub.call("GET", path)
        assert answer.status == 501
        (error,) = answer.json()["errors"]
        assert error["code"] == "UNSUPPORTED"
        assert "ollama" in error["message"]


def test_addresses_that_clients_print_for_people_are_pages(hub: RunningHub) -> None:
    for place in ("", "/tree/main", "/tree/dev%2Fx/folder", f"/commit/{COMMIT}", "/commits/main",
                  "/blob/main/a.txt"):  # fmt: skip
        answer = hub.call("GET", f"/admin/any{place}")
        assert answer.status == 404
        assert answer.headers["Content-Type"].startswith("text/html")


def test_who_has_no_good_token_is_told_of_their_own_tools(hub: RunningHub) -> None:
    nobody = hub.call("POST", "/api/models/admin/x/commit/main", body=b"{}")
    assert error_of(nobody)[0] == 401
    for answer in (nobody, hub.call("GET", "/api/whoami-v2")):
        assert "hf auth login" in sentence(answer)
        assert "HF_TOKEN" in sentence(answer)
        assert "deltahub login" not in sentence(answer)
    unknown = hub.call("GET", "/api/whoami-v2", token="dh_nobody")
    assert "deltahub user token create" in sentence(unknown)


def test_a_method_that_a_path_does_not_take_names_those_that_it_does(hub: RunningHub) -> None:
    answer = hub.call("PUT", "/api/models/admin/x/lfs-files")
    assert error_of(answer) == (405, "method_not_allowed")
    assert answer.headers["Allow"] == "GET"
    assert "/api/models/admin/x/lfs-files" in sentence(answer)
    answer = hub.call("GET", "/api/models/admin/x/branch/b")
    assert answer.headers["Allow"] == "DELETE, POST"
    answer = hub.call("PUT", "/v1/health")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")
    assert "PUT /v1/health" in answer.message


def test_a_commit_that_is_refused_says_what_would_be_right(hub: RunningHub) -> None:
    name = "admin/refused-commits"
    create_model(hub, name)
    head = hub.call("GET", f"/api/models/{name}").json()["sha"]
    for parent in (COMMIT, "0123abc"):
        stale = sentence(send_commit(hub, name, header(parentCommit=parent), small("a", b"")))
        assert f"'{head}'" in stale
        assert f"'{parent}'" in stale
        assert "try again" in stale
    for items, words in (
        ([header(), ("file", {"path": "a"})], ["line 2", '"content"']),
        ([header(), ("lfsFile", {"path": "a"})], ["line 2", '"oid"']),
        ([header(), ("deletedFile", {})], ["line 2", '"path"']),
        ([("header", [1]), small("a", b"")], ["line 1", '"summary"']),  # type: ignore[list-item]  # no object
    ):
        answer = send_commit(hub, name, *items)
        assert error_of(answer) == (422, "invalid_request")
        for word in words:
            assert word in sentence(answer), sentence(answer)
    path = f"/api/models/{name}/commit/main"
    answer = hub.call("POST", path, token=hub.admin_token, body=b"no json")
    assert '{"key": ' in sentence(answer)


def test_a_file_is_copied_from_where_the_caller_may_read_it(hub: RunningHub) -> None:
    owner = hub.user("hf-copier")
    source, secret, target = "hf-copier/source", "hf-copier/secret", "hf-copier/target"
    data, hidden = os.urandom(3000), os.urandom(3000)
    for name, body in ((source, data), (secret, hidden)):
        create_model(hub, name, token=owner, private=name == secret)
        send_object(hub, name, body, token=owner)
        line = ("lfsFile", {"path": "w.bin", "algo": "sha256", "oid": digest_of(body),
                            "size": len(body)})  # fmt: skip
        assert send_commit(hub, name, header(), line, token=owner).status == 200
    create_model(hub, target, token=owner)
    other = hub.user("hf-copies")
    create_model(hub, "hf-copies/theirs", token=other)

    def duplicate(name: str, to: str, *bodies: bytes, token: str = other) -> Answer:
        files = [{"xetHash": digest_of(b), "sha256": digest_of(b), "filename": "w"} for b in bodies]
        sent = {"target": {"type": "model", "name": to}, "files": files}
        path = f"/api/models/{name}/lfs-files/duplicate"
        return hub.call("POST", path, token=token, body=sent)

    copied = duplicate(source, "hf-copies/theirs", data)
    assert (copied.status, copied.json()) == (200, {"failed": []})
    line = ("lfsFile", {"path": "copy.bin", "algo": "sha256", "oid": digest_of(data)})
    assert send_commit(hub, "hf-copies/theirs", header(), line, token=other).status == 200
    assert files_of(hub, "hf-copies/theirs") == {"copy.bin": data}
    # A file that the source lacks is not found, although another model has it.
    (failed,) = duplicate(source, target, hidden, token=owner).json()["failed"]
    assert (failed["sha256"], "no file" in failed["error"]) == (digest_of(hidden), True)
    assert error_of(duplicate(secret, "hf-copies/theirs", hidden)) == (404, "RepoNotFound")
    assert error_of(duplicate(source, target, data))[0] == 403
    assert error_of(duplicate(source, "hf-copies/none", data)) == (404, "RepoNotFound")
    data_set = {"target": {"type": "dataset", "name": target}, "files": []}
    path = f"/api/models/{source}/lfs-files/duplicate"
    assert error_of(hub.call("POST", path, token=owner, body=data_set))[0] == 501


def test_what_is_private_is_not_linked_to_what_is_public(hub: RunningHub) -> None:
    owner = hub.user("hf-keeper")
    hidden = os.urandom(3000)
    for name in ("hf-keeper/secret", "hf-keeper/open"):
        create_model(hub, name, token=owner, private=name.endswith("secret"))
    send_object(hub, "hf-keeper/secret", hidden, token=owner)
    line = ("lfsFile", {"path": "w.bin", "algo": "sha256", "oid": digest_of(hidden), "size": 3000})
    assert send_commit(hub, "hf-keeper/secret", header(), line, token=owner).status == 200
    # The administrator may read and write both models, but has not sent the file.
    file = {"xetHash": "", "sha256": digest_of(hidden), "filename": "w.bin"}
    body = {"target": {"type": "model", "name": "hf-keeper/open"}, "files": [file]}
    path = "/api/models/hf-keeper/secret/lfs-files/duplicate"
    (failed,) = hub.call("POST", path, token=hub.admin_token, body=body).json()["failed"]
    assert failed["sha256"] == digest_of(hidden)
    assert "private" in failed["error"]
    copy = ("lfsFile", {"path": "w.bin", "algo": "sha256", "oid": digest_of(hidden)})
    answer = send_commit(hub, "hf-keeper/open", header(), copy)
    assert error_of(answer) == (404, "upload_not_found")


def test_a_body_that_is_no_json_is_called_so_at_both_doors(hub: RunningHub) -> None:
    json_type = {"Content-Type": "application/json"}
    for path in ("/v1/repositories", "/api/repos/create", "/api/validate-yaml"):
        answer = hub.call("POST", path, token=hub.admin_token, body=b"{bad", headers=json_type)
        assert answer.status == 422
        message = answer.message if path.startswith("/v1/") else sentence(answer)
        assert message.startswith("the body is not JSON: "), message
        assert message.endswith(" at character 1"), message


def test_names_are_searched_for_every_character_asked_for(hub: RunningHub) -> None:
    hub.create("admin/sought_1")
    nothing = ("sought%251", "%25", "%00", "sought_1%00", "sought_%00", "soughtx1")
    for words, n_found in (("sought_1", 1), ("SOUGHT", 1), *((one, 0) for one in nothing)):
        page = hub.call("GET", f"/v1/repositories?search={words}").json()
        assert len(page["items"]) == n_found, words
        assert len(hub.call("GET", f"/api/models?search={words}").json()) == n_found, words


def test_settings_that_the_hub_does_not_keep_are_refused(hub: RunningHub) -> None:
    name = "admin/settings"
    assert create_model(hub, name).status == 200
    path = f"/api/models/{name}/settings"

    def change(**body: object) -> Answer:
        return hub.call("PUT", path, token=hub.admin_token, body=body)

    for body, word in (
        ({"gated": "auto"}, "no gated models"),
        ({"visibility": "protected"}, "no protected models"),
        ({"description": "mine"}, "'description'"),
        ({"xetEnabled": True}, "'xetEnabled'"),
        ({"discussionsDisabled": False}, "'discussionsDisabled'"),
        ({"private": True, "x" * 200: []}, "(200 long)"),
    ):
        refused = change(**body)
        assert error_of(refused) == (501, "NotImplemented"), body
        assert word in refused.headers["X-Error-Message"]
    # Nothing was changed, and a caller who may not change the model learns nothing of settings.
    assert hub.call("GET", f"/api/models/{name}").json()["private"] is False
    assert hub.call("PUT", path, body={"description": "mine"}).status == 401
    # Settings at the hub's only value are accepted, and null means no change.
    answer = change(private=False, visibility="public", gated=False, description=None)
    expected = {"private": False, "visibility": "public", "gated": False}
    assert (answer.status, answer.json()) == (200, expected)
    body = {"name": f"{name}-p", "visibility": "protected"}
    made = hub.call("POST", "/api/repos/create", token=hub.admin_token, body=body)
    assert error_of(made) == (501, "NotImplemented")
    assert hub.call("GET", f"/api/models/{name}-p", token=hub.admin_token).status == 404
