"""What a hub says never controls the terminal: escape sequences are shown, not sent."""

import io
import json
import os
import pty
import subprocess
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deltahub.client import Hub, HubError, Lines
from deltahub.client.escapes import printable
from support.service.client_process import COMMAND, deltahub
from support.service.hostile_hub import COMMIT, Handler, HostileHub, Reply, entry, reply

# Clears the screen, sets the title, hides text, turns its direction, forges a line, and a link.
EVIL = "\x1b[2J\x1b]0;owned\x07\x9b8m\u202ecod.exe\u2066\r\nforged line\u200b[link=http://evil]x[/]"
NAME = "evil/m"
ROOT = f"/v1/repositories/{NAME}"
SHOWN = "\\x1b[2J\\x1b]0;owned\\x07\\x9b8m\\u202ecod.exe\\u2066\\r\\nforged line"

ENTRY = entry("a", b"x")
REPOSITORY = {"name": EVIL, "private": False, "role": EVIL, "created_at": EVIL, "head": EVIL}
TENSOR = {"name": EVIL, "size": 1, "stored": 1, "codec": EVIL, "dtype": EVIL, "shape": [1]}
INFO = {
    "commit": COMMIT,
    "files": [{"path": EVIL, "size": 1, "state": EVIL, "kind": EVIL, "note": EVIL,
               "tensors": [TENSOR]}],
    "totals": {"size": 1},
    "base": {"declared": EVIL, "declared_status": EVIL,
             "measured": [{"repository": EVIL, "commit": EVIL, "share": 0.5}]},
}  # fmt: skip
REVISION = {"commit": COMMIT, "entries": [{**ENTRY, "path": EVIL, "state": EVIL}]}
ERROR = {"error": {"code": "forbidden", "message": EVIL}}
WHO = {"name": EVIL, "scope": EVIL, "namespaces": [{"name": EVIL, "role": EVIL}]}

COMMANDS = [
    (["whoami"], {"GET /v1/whoami": reply(WHO)}, 0),
    (["ls"], {"GET /v1/repositories": reply({"items": [REPOSITORY], "next_cursor": None})}, 0),
    (["ls", NAME], {f"GET {ROOT}/revision": reply(REVISION)}, 0),
    (["info", NAME], {f"GET {ROOT}/info": reply(INFO)}, 0),
    (["visibility", NAME, "public"], {f"PATCH {ROOT}": reply(REPOSITORY)}, 0),
    (["pull", NAME], {f"GET {ROOT}/revision": reply(REVISION)}, 1),
    (["pull", NAME], {f"GET {ROOT}/revision": reply(ERROR, 403)}, 4),
    (["info", NAME], {f"GET {ROOT}/info": reply({"error": {"code": EVIL}}, 500)}, 1),
    (["whoami"], {"GET /v1/whoami": reply({"name": [EVIL]})}, 1),
]  # fmt: skip


def controls(text: str) -> list[str]:
    return [char for char in text if not (char.isprintable() or char == "\n")]


@pytest.mark.parametrize(("arguments", "answers", "status"), COMMANDS)
def test_a_command_shows_escapes_instead_of_sending_them(
    evil: HostileHub, arguments: Sequence[str], answers: dict[str, Reply], status: int
) -> None:
    evil.answers |= answers
    run = deltahub(*arguments, "--url", evil.url)
    assert run.status == status, run.err
    assert controls(run.out + run.err) == []
    assert not any(line.startswith("forged line") for line in (run.out + run.err).split("\n"))


@pytest.mark.parametrize(("arguments", "answers", "status"), COMMANDS)
def test_json_output_stays_json_and_exact(
    evil: HostileHub, arguments: Sequence[str], answers: dict[str, Reply], status: int
) -> None:
    evil.answers |= answers
    run = deltahub(*arguments, "--url", evil.url, "--json")
    assert run.status == status, run.err
    assert controls(run.out + run.err) == []
    printed = json.loads(run.out or run.err)
    if status == 0:
        assert EVIL in texts(printed)


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


def push_answers(evil: HostileHub) -> None:
    """A hub that takes a push and reports a job in the terminal's own language."""
    states = iter(["queued", "running", "running", "running", "failed"])

    def job(_: Handler) -> Reply:
        progress = {"stage": EVIL, "done_bytes": 1, "total_bytes": 2}
        error = {"code": EVIL, "message": EVIL}
        body = {"id": "abc", "kind": EVIL, "state": next(states), "progress": progress}
        return reply({**body, "error": error})

    evil.answers |= {
        f"GET {ROOT}": reply({"name": NAME}),
        f"GET {ROOT}/refs": reply({"items": []}),
        f"POST {ROOT}/files/query": lambda handler: reply(
            {"have": [each["sha256"] for each in json.loads(handler.body)["files"]]}
        ),
        f"POST {ROOT}/commits": reply({"commit": COMMIT, "job_id": "abc"}),
        "GET /v1/jobs/abc": job,
    }


def test_stages_that_a_hub_names_are_escaped_in_lines(
    evil: HostileHub, client: Hub, tmp_path: Path
) -> None:
    push_answers(evil)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "a").write_bytes(b"x")
    out = io.StringIO()
    with pytest.raises(HubError) as failed:
        client.push(tmp_path / "m", NAME, progress=Lines(out))
    assert "\\x1b[2J" in out.getvalue()
    assert controls(out.getvalue()) == []
    assert SHOWN in str(failed.value)


def test_stages_that_a_hub_names_are_escaped_in_bars_and_are_no_markup(
    evil: HostileHub, tmp_path: Path
) -> None:
    push_answers(evil)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "a").write_bytes(b"x")
    main, terminal = pty.openpty()
    run = subprocess.Popen(
        [*COMMAND, "push", str(tmp_path / "m"), NAME],
        env={**os.environ, "DELTAHUB_URL": evil.url, "COLUMNS": "400", "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    try:
        while block := os.read(main, 65536):
            shown += block
    except OSError:
        pass  # a terminal raises this once no process writes to it
    run.communicate(timeout=60)
    os.close(main)
    assert run.returncode == 1
    assert b"owned" in shown
    # rich itself moves the cursor and sets colours, but clears no screen and sets no title or link.
    for sequence in (
        b"\x1b[2J\x1b]0;",
        b"\x1b]0;",
        b"\x07",
        b"\x1b]8;",
        "\u202e".encode(),
        b"\x9b8m",
    ):
        assert sequence not in shown


def test_a_traceback_of_our_error_is_escaped_and_the_message_is_exact(
    evil: HostileHub, client: Hub
) -> None:
    evil.answers["GET /v1/whoami"] = reply(ERROR, 403)
    with pytest.raises(HubError) as raised:
        client.whoami()
    assert raised.value.message == EVIL
    assert SHOWN in str(raised.value)
    assert controls("".join(traceback.format_exception(raised.value))) == []


@pytest.mark.parametrize("text", ["plain", "ümlaut 模型 👩", "C:\\x1b", "it's"])
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_a_terminal_that_lacks_a_letter_gets_its_escape_and_no_traceback(evil: HostileHub) -> None:
    evil.answers["GET /v1/whoami"] = reply({"name": "模型", "scope": "read"})
    run = deltahub("whoami", "--url", evil.url, environment={"PYTHONIOENCODING": "latin-1"})
    assert (run.status, run.err) == (0, "")
    assert run.out.startswith("\\u6a21\\u578b at ")
