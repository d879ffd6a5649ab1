"""The same request, as clients of other languages and releases write it."""

import base64
import json
from hashlib import sha1

import pytest

from deltahub.registry.access import organizations
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

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n"


@pytest.fixture(scope="module")
def name(hub: RunningHub) -> str:
    name = "admin/spellings"
    create_model(hub, name)
    send_object(hub, name, b"weights")
    files = small("a b.txt", b"text"), small("empty.txt", b""), large("d/w.bin", b"weights")
    send_commit(hub, name, header(), *files)
    hub.call("POST", f"/api/models/{name}/branch/dev", token=hub.admin_token, body={})
    return name


@pytest.mark.parametrize(
    "path",
    [
        "/{name}/resolve/HEAD/a%20b.txt",
        "/{name}/resolve/refs/heads/main/a%20b.txt",
        "/{name}/resolve/refs%2Fheads%2Fmain/a%20b.txt",
        "//{name}//resolve/main//a%20b.txt",
        "/{name}/raw/main/a%20b.txt",
        "/{name}/raw/refs/heads/dev/a%20b.txt",
    ],
)
def test_a_file_is_found_however_its_address_is_written(
    hub: RunningHub, name: str, path: str
) -> None:
    answer = hub.call("GET", path.format(name=name))
    assert (answer.status, answer.body) == (200, b"text")


@pytest.mark.parametrize(
    "path",
    ["revision/HEAD", "revision/refs/heads/dev", "tree/HEAD/", "tree/refs/heads/dev/d/", "/"],
)
def test_revisions_of_other_routes_too(hub: RunningHub, name: str, path: str) -> None:
    assert hub.call("GET", f"/api/models/{name}/{path}").status == 200


def test_raw_sends_what_git_keeps(hub: RunningHub, name: str) -> None:
    entry = hub.call("GET", f"/v1/repositories/{name}/revision").json()["entries"]
    digest = next(each["sha256"] for each in entry if each["path"] == "d/w.bin")
    pointer = POINTER % (digest.encode(), 7)
    answer = hub.call("GET", f"/{name}/raw/main/d/w.bin")
    assert answer.body == pointer
    blob = b"blob %d\0" % len(pointer) + pointer
    assert answer.headers["ETag"] == f'"{sha1(blob).hexdigest()}"'
    part = hub.call("GET", f"/{name}/raw/main/d/w.bin", headers={"Range": "bytes=0-0"})
    assert (part.status, part.headers["Content-Range"]) == (206, f"bytes 0-0/{len(pointer)}")
    other = {"Range": "bytes=5-", "If-Range": '"of an older pointer"'}
    assert hub.call("GET", f"/{name}/raw/main/d/w.bin", headers=other).body == pointer


def test_the_first_byte_of_an_empty_file_says_its_size(hub: RunningHub, name: str) -> None:
    answer = hub.call("GET", f"/{name}/resolve/main/empty.txt", headers={"Range": "bytes=0-0"})
    assert (answer.status, answer.headers["Content-Range"]) == (200, "bytes */0")


def test_paths_are_asked_for_as_json_and_as_a_form(hub: RunningHub, name: str) -> None:
    where = f"/api/models/{name}/paths-info/HEAD"
    body = {"paths": ["d/w.bin", "nothing"], "expand": True}
    as_json = hub.call("POST", where, body=body).json()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    text = b"paths=d%2Fw.bin&paths=nothing&expand=true"
    assert as_json == hub.call("POST", where, body=text, headers=form).json()
    assert [each["path"] for each in as_json] == ["d/w.bin"]
    assert "lastCommit" in as_json[0]
    for wrong in ({"paths": [1]}, {"paths": {}}, {}):
        assert hub.call("POST", where, body=wrong).status == 422


@pytest.mark.parametrize("algorithm", ["sha256", "sha_256"])
def test_lfs_has_two_names_for_one_hash(hub: RunningHub, name: str, algorithm: str) -> None:
    body = {"operation": "upload", "hash_algo": algorithm, "objects": []}
    where = f"/{name}.git/info/lfs/objects/batch"
    answer = hub.call("POST", where, token=hub.admin_token, body=body)
    assert (answer.status, answer.json()["hash_algo"]) == (200, algorithm)


def test_the_token_may_be_a_password(hub: RunningHub, name: str) -> None:
    for pair in (f"anyone:{hub.admin_token}", f"{hub.admin_token}:"):
        headers = {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
        assert hub.call("GET", "/api/whoami-v2", headers=headers).json()["name"] == "admin"
    for wrong in ("YWRtaW46", "!!!", "YWRtaW46bm8="):
        refused = hub.call("GET", "/api/whoami-v2", headers={"Authorization": f"Basic {wrong}"})
        assert refused.status == 401
    # git-lfs asks again with a password where it is told so.
    where = f"/{name}.git/info/lfs/objects/batch"
    refused = hub.call("POST", where, body={"operation": "upload", "objects": []})
    assert refused.headers["WWW-Authenticate"].startswith("Basic ")


def test_commits_to_head_go_to_main(hub: RunningHub) -> None:
    create_model(hub, "admin/heads")
    assert send_commit(hub, "admin/heads", header(), small("a", b"a"), branch="HEAD").status == 200
    refs = hub.call("GET", "/api/models/admin/heads/refs").json()
    assert [each["name"] for each in refs["branches"]] == ["main"]
    assert json.loads(hub.call("GET", "/admin/heads/resolve/main/a").headers["X-Linked-Size"]) == 1


@pytest.mark.parametrize("branch", ["refs/heads/main", "refs%2Fheads%2Fmain"])
def test_commits_to_a_full_reference_go_to_its_branch(hub: RunningHub, branch: str) -> None:
    name = f"admin/full-{len(branch)}"
    create_model(hub, name)
    parent = hub.call("GET", f"/api/models/{name}").json()["sha"]
    body = {"files": [{"path": "a", "size": 1, "sample": ""}]}
    where = f"/api/models/{name}/preupload/{branch}"
    assert hub.call("POST", where, token=hub.admin_token, body=body).json()["commitOid"] == parent
    sent = send_commit(hub, name, header(parentCommit=parent), small("a", b"a"), branch=branch)
    assert sent.status == 200, sent.body
    assert files_of(hub, name) == {"a": b"a"}
    refs = hub.call("GET", f"/api/models/{name}/refs").json()
    assert [each["name"] for each in refs["branches"]] == ["main"]


def test_no_branch_and_no_tag_has_a_name_that_readers_get_another_for(
    hub: RunningHub, name: str
) -> None:
    for made in ("HEAD", "refs%2Fheads%2Fmain", "refs%2Ftags%2Fv1"):
        where = f"/api/models/{name}/branch/{made}"
        refused = hub.call("POST", where, token=hub.admin_token, body={})
        assert error_of(refused) == (422, "invalid_name")
    for tag in ("HEAD", "refs/heads/dev"):
        where = f"/api/models/{name}/tag/main"
        refused = hub.call("POST", where, token=hub.admin_token, body={"tag": tag})
        assert error_of(refused) == (422, "invalid_name")


def test_what_git_shows_in_a_terminal_has_no_control_characters(hub: RunningHub) -> None:
    shown = hub.call("GET", "/admin/m.git/info/refs?service=git-upload-pack")
    assert (shown.status, b"hf download admin/m`" in shown.body) == (501, True)
    odd = hub.call("GET", "/admin/%1b[31m%0aX/info/refs?service=git-upload-pack")
    assert (odd.status, b"hf download NAMESPACE/NAME`" in odd.body) == (501, True)
    assert b"\x1b" not in odd.body


@pytest.mark.parametrize("path", ["/datasets", "/spaces", "/datasets/a/b", "/api/spaces/a/b"])
def test_what_is_not_kept_here_says_so(hub: RunningHub, path: str) -> None:
    answer = hub.call("GET", path)
    assert error_of(answer) == (404, "RepoNotFound")
    assert "this hub keeps models, and no" in answer.json()["error"]


@pytest.mark.parametrize("namespace", ["raw", "resolve", "buckets", "info"])
def test_no_word_of_an_address_hides_the_models_of_a_namespace(
    hub: RunningHub, namespace: str
) -> None:
    organizations.create_organization(hub.registry, namespace)
    for short in ("m", "raw", "resolve", "refs", "discussions"):
        name = f"{namespace}/{short}"
        create_model(hub, name)
        send_commit(hub, name, header(), small("info/refs", b"r"))
        for path in ("", "/tree/main/info", "/revision/main", "/refs", "/commits/main"):
            assert hub.call("GET", f"/api/models/{name}{path}").status == 200, (name, path)
        for verb in ("raw", "resolve"):
            assert hub.call("GET", f"/{name}/{verb}/main/info/refs").body == b"r"
        for path in ("", "/tree/main/info", "/blob/main/info/refs"):
            assert hub.call("GET", f"/{name}{path}").status == 200
