"""The log as JSON objects, in which an operator finds the request that a client complains of."""

import json
import logging
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from deltahub.registry.logs import LogFormatter
from deltahub.server.connections.redaction import redacted
from support.service.hub import served_hub

SECRET = "dh_0123456789abcdefghij"


def lines_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_each_line_is_an_object_and_has_the_id_that_the_client_sees(tmp_path: Path) -> None:
    log = tmp_path / "log"
    data = os.urandom(200_000)
    with (
        log.open("wb") as sink,
        served_hub(
            tmp_path / "data",
            environment={"DELTAHUB_LOG_FORMAT": "json"},
            arguments=("--access-log",),
            log=sink,
        ) as hub,
    ):
        hub.create("admin/logged")
        made = hub.commit("admin/logged", {"a.bin": data, "b.bin": os.urandom(100)})
        assert hub.wait_for_job(made["job_id"])["state"] == "done"
        path = "/admin/logged/resolve/main/a.bin"
        pulled = hub.call("GET", f"{path}?token={SECRET}", headers={"X-Request-Id": "pull-1"})
        assert pulled.body == data
        (pack,) = packs(hub.data_dir)
        pack.write_bytes(b"damaged")
        failed = hub.call("GET", "/admin/logged/resolve/main/b.bin")
        assert failed.status == 500
        told = hub.call("GET", "/v1/repositories/admin/logged/files/b.bin").json()["error"]
        assert told["code"] == "data_lost"
    lines = lines_of(log)
    for line in lines:
        assert {"time", "level", "logger", "process", "message"} <= line.keys()
        datetime.fromisoformat(line["time"])
        assert line["time"].endswith("Z")
    assert {line["process"].partition("[")[0] for line in lines} == {"server", "worker"}
    assert any("worker is ready" in line["message"] for line in lines)
    assert SECRET[8:] not in log.read_text()

    about = [line for line in lines if line.get("request_id") == "pull-1"]
    (access,) = [line for line in about if "status" in line]
    assert {key: access[key] for key in ("method", "path", "status", "bytes", "client")} == {
        "method": "GET",
        "path": path,
        "status": 200,
        "bytes": len(data),
        "client": "127.0.0.1",
    }
    assert 0 < access["seconds"] < 60

    for request_id in (failed.headers["X-Request-Id"], told["request_id"]):
        about = [line for line in lines if line.get("request_id") == request_id]
        assert any(line["level"] == "ERROR" and "data_lost" in line["message"] for line in about)
        assert [line["status"] for line in about if "status" in line] == [500]


def packs(data_dir: Path) -> list[Path]:
    return [path for path in (data_dir / "objects" / "packs").rglob("*") if path.is_file()]


def test_an_exception_is_a_field_and_secrets_are_cut(tmp_path: Path) -> None:
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "first\n%s", (SECRET,), None)
    try:
        raise ValueError(f"line\n{SECRET}")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    line = LogFormatter("server", "json", redacted, lambda: "id-1").format(record)
    assert "\n" not in line
    assert SECRET[3:] not in line
    fields = json.loads(line)
    assert fields["message"] == "first\ndh_..."
    assert fields["request_id"] == "id-1"
    assert fields["exception"].endswith("ValueError: line\ndh_...")


def test_text_names_the_request_at_the_end_of_a_line(tmp_path: Path) -> None:
    record = logging.LogRecord("x", logging.INFO, "f", 1, "done", None, None)
    inside = LogFormatter("server", "text", redacted, lambda: "id-1").format(record)
    assert inside.endswith(f" server[{record.process}] INFO x: done request=id-1")
    assert LogFormatter("server", "text").format(record).endswith(" INFO x: done")
