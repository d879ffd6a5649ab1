"""Quotas as people meet them: a push that is too much sends nothing, and they see why."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from deltahub.client import Hub
from deltahub.client.cli.commands import group
from deltahub.client.errors import LimitExceeded
from deltahub.client.records import Amounts
from support.service.hub import RunningHub


def quota(hub: RunningHub, *arguments: str, status: int = 0) -> str:
    command = ["user", "quota", *arguments, "--data-dir", str(hub.data_dir)]
    result = CliRunner().invoke(group, command)
    assert result.exit_code == status, result.output
    return result.output


def test_a_push_beyond_the_quota_sends_nothing_and_says_what_to_do(
    hub_server: RunningHub, tmp_path: Path
) -> None:
    token = hub_server.user("quinn")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(b"1" * 300_000)
    assert "repositories: 0, no limit" in quota(hub_server, "quinn")
    for size in ("much", "1.5.5GB", "3 parsecs"):
        assert "write 500GB, 1.5TB or 2GiB" in quota(hub_server, "quinn", "--files", size, status=2)
    assert "too large" in quota(hub_server, "quinn", "--files", "99999999PB", status=2)
    assert "files: 0 B of 1.5 GB" in quota(hub_server, "quinn", "--files", "1.5GB")
    assert '"stored_bytes": 2147483648' in quota(hub_server, "quinn", "--stored", "2GiB", "--json")
    said = quota(hub_server, "quinn", "--repositories", "1", "--files", "500KB")
    assert "repositories: 0 of 1" in said
    assert "stored: 0 B, no limit" in said
    with Hub(hub_server.url, token) as hub:
        hub.push(folder, "quinn/one")
        (folder / "weights.bin").write_bytes(b"2" * 300_000)
        before = hub_server.call("GET", "/v1/metrics", token=hub_server.admin_token).json()
        with pytest.raises(LimitExceeded, match=r"would add 300\.0 kB") as refused:
            hub.push(folder, "quinn/one")
        assert refused.value.code == "quota_exceeded"
        after = hub_server.call("GET", "/v1/metrics", token=hub_server.admin_token).json()
        assert after["received_bytes"] - before["received_bytes"] < 20_000
        with pytest.raises(LimitExceeded, match="may have 1"):
            hub.create("quinn/two")
        (namespace,) = hub.whoami().namespaces
        assert namespace.limits == Amounts(1, None, 500_000)
        assert namespace.used.repositories == 1
        assert namespace.used.logical_bytes == 300_000
        assert hub.info("quinn/one")["usage"]["logical_bytes"] == 300_000
    environment = {"DELTAHUB_URL": hub_server.url, "DELTAHUB_TOKEN": token}
    told = CliRunner().invoke(group, ["whoami"], env=environment).output
    assert "1 repository of 1" in told
    assert "300.0 kB of 500.0 kB of files" in told
    quota(hub_server, "quinn", "--clear")
    with Hub(hub_server.url, token) as hub:
        assert hub.push(folder, "quinn/one").state == "proved"


def test_a_push_that_is_refused_leaves_no_empty_repository(
    hub_server: RunningHub, tmp_path: Path
) -> None:
    token = hub_server.user("quentin")
    (tmp_path / "weights.bin").write_bytes(b"1" * 3000)
    with Hub(hub_server.url, token) as hub:
        for limit in (("--files", "2KB"), ("--stored", "0")):
            quota(hub_server, "quentin", *limit)
            with pytest.raises(LimitExceeded) as refused:
                hub.push(tmp_path, "quentin/one")
            assert refused.value.code == "quota_exceeded"
            assert list(hub.list("quentin")) == []


def test_clients_that_send_first_and_ask_later_are_told_when_nothing_more_may_come(
    hub_server: RunningHub, tmp_path: Path
) -> None:
    token = hub_server.user("hera")
    hub_server.create("hera/model", token=token)
    (tmp_path / "w").write_bytes(b"1" * 3000)

    def status(access: str) -> int:
        path = f"/api/models/hera/model/xet-{access}-token/main"
        return hub_server.call("GET", path, token=token).status

    with Hub(hub_server.url, token) as hub:
        hub.push(tmp_path, "hera/model")
    for limit in ("--files", "--stored"):
        quota(hub_server, "hera", limit, "1KB" if limit == "--files" else "1")
        assert (status("write"), status("read")) == (413, 200)
        quota(hub_server, "hera", limit, "1MB")
        assert (status("write"), status("read")) == (200, 200)


def test_hugging_face_clients_are_told_before_they_send(hub_server: RunningHub) -> None:
    token = hub_server.user("hugh")
    hub_server.create("hugh/model", token=token)
    quota(hub_server, "hugh", "--files", "1KB")
    files = [{"path": "w.safetensors", "size": 2000, "sample": ""}]
    asked = hub_server.call(
        "POST", "/api/models/hugh/model/preupload/main", token=token, body={"files": files}
    )
    batch = {"operation": "upload", "objects": [{"oid": "a" * 64, "size": 2000}]}
    told = hub_server.call(
        "POST", "/hugh/model.git/info/lfs/objects/batch", token=token, body=batch
    )
    for answer in (asked, told):
        assert answer.status == 413
        assert "would add 2.0 kB" in answer.json()["error"]


def test_administrators_set_quotas_over_http(hub_server: RunningHub) -> None:
    token = hub_server.user("hetty")
    path = "/v1/namespaces/hetty/quota"
    body = {"repositories": 0}
    assert hub_server.call("PUT", path, token=token, body=body).status == 403
    admin = hub_server.admin_token
    assert hub_server.call("PUT", path, token=admin, body=body).status == 204
    shown = hub_server.call("GET", path, token=token).json()
    assert shown["limits"] == {"repositories": 0, "stored_bytes": None, "logical_bytes": None}
    assert shown["used"] == {"repositories": 0, "stored_bytes": 0, "logical_bytes": 0}
    assert hub_server.call("DELETE", path, token=admin).status == 204
    assert hub_server.call("GET", path).status == 403
    unknown = "/v1/namespaces/nobody/quota"
    assert hub_server.call("GET", unknown, token=admin).status == 404
    assert hub_server.call("GET", unknown, token=token).status == 403
