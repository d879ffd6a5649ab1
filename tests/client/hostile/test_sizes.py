"""A hub that announces more than it sends, or sends too much: memory and disk stay bounded."""

import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from deltahub.client import BadResponse, DiskFull, Hub, HubError
from deltahub.client.push.plan import SMALL_FILE
from support.service.hostile_hub import Handler, HostileHub, Reply, reply

NAME = "evil/m"
ROOT = f"/v1/repositories/{NAME}"
MIB = 1 << 20


@pytest.mark.parametrize("is_to", [True, False])
def test_a_file_of_an_announced_size_takes_the_disk_only_as_it_comes(
    evil: HostileHub, client: Hub, tmp_path: Path, home: Path, is_to: bool
) -> None:
    revision = evil.serve_revision(NAME, {"a.bin": b"few bytes"})
    revision["entries"][0]["size"] = 8 << 30
    with pytest.raises(HubError):
        client.pull(NAME, to=tmp_path / "m" if is_to else None)
    taken = sum(path.lstat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file())
    assert taken < 4 * MIB


def test_a_file_that_no_disk_holds_is_refused_before_a_byte_is_fetched(
    evil: HostileHub, client: Hub, tmp_path: Path
) -> None:
    revision = evil.serve_revision(NAME, {"a.bin": b"few bytes"})
    revision["entries"][0]["size"] = 1 << 59
    with pytest.raises(DiskFull, match=f"no room for {1 << 59} bytes"):
        client.pull(NAME, to=tmp_path / "m")
    assert not any("/files/" in path for _, path, _ in evil.seen)


@pytest.mark.parametrize("size", [-1, 1 << 60, 10**30, 1.5, "7", None, True])
def test_a_size_that_cannot_be_is_an_odd_answer(
    evil: HostileHub, client: Hub, tmp_path: Path, size: object
) -> None:
    revision = evil.serve_revision(NAME, {"a.bin": b"few bytes"})
    revision["entries"][0]["size"] = size
    with pytest.raises(BadResponse, match="is odd: entries: size"):
        client.pull(NAME, to=tmp_path / "m")


@pytest.mark.parametrize("more", [b"", b"more than was announced" * 1000])
def test_a_stream_stops_at_the_announced_length(
    evil: HostileHub, client: Hub, tmp_path: Path, more: bytes
) -> None:
    files = {"a.bin": b"ten bytes.", "b.bin": b"x"}
    evil.serve_revision(NAME, files)
    evil.answers[f"GET {ROOT}/files/a.bin"] = reply(files["a.bin"] + more)
    client.pull(NAME, to=tmp_path / "m")
    assert (tmp_path / "m" / "a.bin").read_bytes() == files["a.bin"]


# Peak memory of a child, because that of this process is what earlier tests needed.
MEASURED = """
    import resource, sys
    from deltahub.client import Hub, HubError
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        {call}
    except HubError as exc:
        print(exc.code, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def endless(handler: Handler) -> None:
    """An answer of 256 GiB that is sent for as long as the client reads."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 38))
    handler.end_headers()
    while True:
        handler.wfile.write(b"[" * MIB)


def endless_chunks(handler: Handler) -> None:
    """A body without an announced length."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while True:
        handler.wfile.write(b"100000\r\n" + b"[" * MIB + b"\r\n")


def negative_chunk(handler: Handler) -> None:
    """A chunk of length -1: to some readers, everything until the end."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"-1\r\n")
    for _ in range(200):
        handler.wfile.write(b"x" * MIB)


def endless_error(handler: Handler) -> None:
    handler.send_response(403)
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * MIB)


def bomb(handler: Handler) -> Reply:
    """15 MiB of JSON whose objects would take gigabytes."""
    return reply(b"[" + b"[]," * (5 * MIB) + b"[]]")


@pytest.mark.parametrize("answer", [endless, endless_chunks, negative_chunk, endless_error, bomb])
def test_an_answer_takes_bounded_memory(
    evil: HostileHub, answer: Callable[[Handler], Reply | None]
) -> None:
    evil.answers["GET /v1/whoami"] = answer
    script = MEASURED.format(call=f"Hub({evil.url!r}, patience_s=0).whoami()")
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    code, mib = run.stdout.split()
    assert code in ("bad_response", "hub_unreachable"), run.stderr
    assert int(mib) < 100


def test_announced_bytes_of_an_answer_are_not_reserved(evil: HostileHub, client: Hub) -> None:
    evil.answers["GET /v1/whoami"] = Reply(b'{"name": "a"}', length=1 << 50)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(HubError):
        client.whoami()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10


@pytest.mark.parametrize(("more", "size_more"), [(1, 1), (1, 0), (None, 0), (-1, 1)])
def test_an_upload_of_which_the_hub_says_nonsense_ends(
    evil: HostileHub, client: Hub, tmp_path: Path, more: int | None, size_more: int
) -> None:
    data = b"7" * SMALL_FILE  # smaller files are not asked for
    received = -1 if more is None else len(data) + more
    headers = {"Upload-Offset": str(received), "Upload-Length": str(len(data) + size_more)}
    evil.answers |= {
        f"HEAD /v1/uploads/{sha256(data).hexdigest()}": Reply(b"", 200, headers),
        f"GET {ROOT}": reply({"name": NAME}),
        f"GET {ROOT}/refs": reply({"items": []}),
        f"POST {ROOT}/files/query": reply({"have": []}),
    }
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(BadResponse, match=f"how many of {len(data)} bytes have come"):
        client.upload_file(tmp_path / "f", NAME)
