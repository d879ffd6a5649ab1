"""The S3 door has the limits of the other doors: turns, quarantine, counts, and numbers."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from starlette.requests import Request

from deltahub.registry.access import tokens
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.adapters.reports import QUARANTINED, write_report
from deltahub.registry.catalog.refs import create_ref, resolve_revision
from deltahub.registry.errors import Busy, Unavailable
from deltahub.server.s3.errors import answer_to
from deltahub.server.settings import ServerSettings
from support.s3.door import Door, code_of, sentence_of
from support.s3.world import World
from support.service.hub import running_hub

PATIENCE_S = 30


def test_a_download_waits_for_its_turn_with_those_of_other_doors(tmp_path: Path) -> None:
    settings = ServerSettings(s3_port=0, max_streams=1, streams_per_user=1, stop_grace_s=2)
    data = bytes(range(256)) * (64 << 10)
    with (
        running_hub(tmp_path / "data", server_settings=settings) as hub,
        ThreadPoolExecutor(1) as pool,
    ):
        hub.create("admin/m")
        hub.commit("admin/m", {"a.bin": data})
        door = Door(hub.s3_url).by(hub, hub.admin_token)

        def waiting() -> bool:
            metrics = hub.call("GET", "/metrics", token=hub.admin_token).body.decode()
            return 'deltahub_turns_waiting{queue="downloads"} 1.0' in metrics

        with socket.create_connection(hub.address) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line = f"GET /admin/m/resolve/main/a.bin HTTP/1.1\r\nHost: {hub.address[0]}\r\n"
            line += f"Authorization: Bearer {hub.admin_token}\r\n\r\n"
            slow.sendall(line.encode())
            assert slow.recv(12) == b"HTTP/1.1 200"
            answer = pool.submit(door.get, "admin", "m/a.bin")
            deadline = time.monotonic() + PATIENCE_S
            while not waiting():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert not answer.done()
        assert answer.result(PATIENCE_S).body == data
        part = door.get("admin", "m/a.bin", Range="bytes=1000000-9999999")
        assert part.body == data[1_000_000:10_000_000]


def test_a_client_that_gets_no_turn_is_told_to_come_again() -> None:
    request = Request({"type": "http", "method": "GET", "path": "/ann/x", "headers": []})
    for error, code in (
        (Busy("no turn within 2 s"), "SlowDown"),
        (Unavailable("the database does not answer"), "ServiceUnavailable"),
    ):
        answer = answer_to(request, error)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert f"<Code>{code}</Code>".encode() in bytes(answer.body)


def test_a_quarantined_adapter_is_refused_as_at_resolve(world: World) -> None:
    hub = world.hub
    token = hub.user("careful")
    hub.create("careful/adapter", token=token)
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    commit = hub.commit("careful/adapter", files, token)["commit"]
    caller = tokens.authenticate(hub.registry, token)
    create_ref(hub.registry, caller, "careful/adapter", "tag", "pushed", commit)
    with hub.registry.db.read() as session:
        repository = load_repository(session, caller, "careful/adapter")
        revision = resolve_revision(session, repository, "main")
    report = {"why": "it changed its base", "way_out": "convert it", "rule": "pissa"}
    write_report(hub.registry, revision.id, QUARANTINED, report)
    resolve = "/careful/adapter/resolve/main/adapter_model.safetensors"
    assert hub.call("GET", resolve, token=token).status == 403
    for at in ("", "@main", "@HEAD", f"@{commit}", "@refs/heads/main"):
        refused = world.ann.get("careful", f"adapter{at}/adapter_model.safetensors")
        assert code_of(refused) == (403, "AccessDenied")
        assert "it changed its base" in sentence_of(refused)
        assert "convert it" in sentence_of(refused)
        assert world.ann.get("careful", f"adapter{at}/adapter_config.json").body == b"{}"
    assert world.ann.get("careful", "adapter@pushed/adapter_model.safetensors").body == b"weights"


def test_reads_are_counted_as_those_of_other_doors(world: World) -> None:
    metrics = world.hub.call("GET", "/metrics", token=world.hub.admin_token).body.decode()
    world.ann.get("ann", "tiny.x/a.txt")
    after = world.hub.call("GET", "/metrics", token=world.hub.admin_token).body.decode()

    def count(text: str) -> float:
        lines = [line for line in text.splitlines() if line.startswith("deltahub_http_requests_to")]
        mine = [
            line for line in lines if 'door="s3"' in line and 'route="/{bucket}/{key:path}"' in line
        ]
        return sum(float(line.split()[-1]) for line in mine if 'method="GET"' in line)

    assert count(after) >= count(metrics) + 1


def test_answers_name_the_request(world: World) -> None:
    answer = world.ann.call("GET", "/ann/nothing", headers={"x-request-id": "mine-1"})
    assert answer.headers["x-amz-request-id"] == answer.headers["x-request-id"] == "mine-1"
    assert b"<RequestId>mine-1</RequestId>" in answer.body
    head = world.ann.call("HEAD", "/ann/nothing")
    assert head.headers["X-Error-Code"] == "NoSuchKey"
    assert "nothing" in head.headers["X-Error-Message"]
