"""An object store that lies to a pull: the hub sends what it spoils, and no file is wrong."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deltahub.client import BadResponse, Hub, PullResult
from deltahub.client.pull.links import source
from deltahub.registry import Registry
from deltahub.registry.storage.local import FileStore
from support.models.model_folders import base_tensors, contents, write_model
from support.service.hostile_hub import Handler, HostileHub, Reply, hostile_hub, reply
from support.service.hub import RunningHub, running_hub

NAME = "admin/m"
Spoil = Callable[[Handler, Reply], Reply | None]


class Bucket(dict[str, Callable[[Handler], Reply | None]]):
    """The answers of an object store with the hub's objects. spoil: changes a right answer."""

    registry: Registry
    spoil: Spoil = staticmethod(lambda _, right: right)

    def get(self, key: str, default: object = None) -> Callable[[Handler], Reply | None]:  # type: ignore[override]
        return lambda handler: self.spoil(handler, self._right(key.partition(" ")[2], handler))

    def _right(self, path: str, handler: Handler) -> Reply:
        first, last = handler.headers["Range"].removeprefix("bytes=").split("-")
        data = bytearray(int(last) - int(first) + 1)
        key = path.removeprefix("/bucket/")
        self.registry.store.get_into(key, int(first), memoryview(data))
        place = f"bytes {first}-{last}/{self.registry.store.size(key)}"
        return Reply(bytes(data), 206, {"Content-Range": place})


@pytest.fixture(scope="module")
def evil() -> Iterator[HostileHub]:
    with hostile_hub() as running:
        running.answers = Bucket()
        yield running


@pytest.fixture(scope="module")
def server(evil: HostileHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """A hub whose links lead to the evil one."""

    def link(store: FileStore, key: str, start: int, end: int, lifetime_s: int) -> str:
        return f"{evil.url}/bucket/{key}?X-Amz-Signature=5ec2e7&r={start}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileStore, "link", link)
        folder = tmp_path_factory.mktemp("hub")
        with running_hub(folder / "data", with_worker=True, s3_link_endpoint=evil.url) as hub:
            evil.answers.registry = hub.registry  # type: ignore[attr-defined]
            yield hub


@pytest.fixture(scope="module")
def model(server: RunningHub, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model(tmp_path_factory.mktemp("model") / "m", base_tensors())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTAHUB_CACHE", str(folder.parent / "cache"))
        with Hub(server.url, server.admin_token) as hub:
            hub.push(folder, NAME)
    return folder


class Notes:
    """A receiver of a pull's notes."""

    def __init__(self) -> None:
        from deltahub.client import Silent

        self.stage = Silent().stage
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def pull(
    server: RunningHub, evil: HostileHub, model: Path, to: Path, spoil: Spoil, **options: bool
) -> tuple[PullResult, list[str]]:
    evil.answers.spoil = spoil  # type: ignore[attr-defined]
    evil.seen.clear()
    notes = Notes()
    with Hub(server.url, server.admin_token, patience_s=2) as hub:
        report = hub.pull_with_report(NAME, to=to, progress=notes, **options)
    assert contents(report.path) == contents(model)
    # The token is the hub's alone, and the signature is for no log.
    assert not any("authorization" in map(str.lower, headers) for _, _, headers in evil.seen)
    assert not any("5ec2e7" in text or "dh_" in text for text in notes.texts)
    return report, notes.texts


def test_a_pull_reads_an_honest_store(
    server: RunningHub, evil: HostileHub, model: Path, tmp_path: Path
) -> None:
    report, _ = pull(server, evil, model, tmp_path / "m", lambda _, right: right)
    assert report.linked > report.size / 2
    assert report.link_failures == 0
    assert report.received >= report.linked


def test_links_can_be_turned_off(
    server: RunningHub,
    evil: HostileHub,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report, _ = pull(server, evil, model, tmp_path / "a", lambda _, right: right, links=False)
    assert (report.linked, evil.seen) == (0, [])
    monkeypatch.setenv("DELTAHUB_NO_LINKS", "1")
    report, _ = pull(server, evil, model, tmp_path / "b", lambda _, right: right)
    assert (report.linked, evil.seen) == (0, [])


def flipped(handler: Handler, right: Reply) -> Reply:
    data = bytearray(right.body)
    data[len(data) // 2] ^= 1
    return replace(right, body=bytes(data))


def other_frames(handler: Handler, right: Reply) -> Reply:
    return replace(right, body=bytes(len(right.body)))


def cut(handler: Handler, right: Reply) -> Reply:
    return replace(right, body=right.body[: len(right.body) // 2], length=len(right.body))


def fewer(handler: Handler, right: Reply) -> Reply:
    return replace(right, body=right.body[:-1])


def more(handler: Handler, right: Reply) -> Reply:
    return replace(right, body=right.body + b"more")


def whole(handler: Handler, right: Reply) -> Reply:
    return replace(right, status=200)


def shifted(handler: Handler, right: Reply) -> Reply:
    return replace(right, headers={"Content-Range": f"bytes 0-{len(right.body) - 1}/*"})


def sent_on(handler: Handler, right: Reply) -> Reply:
    return reply(b"", 307, Location=f"{handler.headers['Host']}/elsewhere")


def forbidden(handler: Handler, right: Reply) -> Reply:
    return reply(b"<Error><Code>AccessDenied</Code></Error>", 403)


def gone(handler: Handler, right: Reply) -> Reply:
    return reply(b"<Error><Code>NoSuchKey</Code></Error>", 404)


def slow_down(handler: Handler, right: Reply) -> Reply:
    return reply(b"<Error><Code>SlowDown</Code></Error>", 503)


def silent(handler: Handler, right: Reply) -> None:
    return None


def endless(handler: Handler, right: Reply) -> None:
    handler.send_response(206)
    handler.send_header("Transfer-Encoding", "chunked")
    for key, value in right.headers.items():
        handler.send_header(key, value)
    handler.end_headers()
    while True:
        handler.wfile.write(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")


LIES = [flipped, other_frames, cut, fewer, more, whole, shifted, sent_on, forbidden, gone,
        slow_down, silent, endless]  # fmt: skip


@pytest.mark.parametrize("spoil", LIES)
def test_what_the_store_spoils_comes_from_the_hub(
    server: RunningHub, evil: HostileHub, model: Path, tmp_path: Path, spoil: Spoil
) -> None:
    report, _ = pull(server, evil, model, tmp_path / "m", spoil)
    assert report.link_failures > 0
    assert len(evil.seen) < 20
    assert all(path.startswith("/bucket/packs/") for _, path, _ in evil.seen)


def test_a_store_that_is_too_slow_is_given_up(
    server: RunningHub,
    evil: HostileHub,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "_LATE_S", 0.2)
    monkeypatch.setattr(source, "_LEAST_RATE", 1 << 40)

    def slow(handler: Handler, right: Reply) -> None:
        handler.send_response(206)
        handler.send_header("Content-Length", str(len(right.body)))
        for key, value in right.headers.items():
            handler.send_header(key, value)
        handler.end_headers()
        for start in range(0, len(right.body), 1 << 16):
            handler.wfile.write(right.body[start : start + (1 << 16)])
            time.sleep(0.3)

    report, _ = pull(server, evil, model, tmp_path / "m", slow)
    assert report.link_failures > 0


def test_links_that_expire_are_asked_for_again(
    server: RunningHub, evil: HostileHub, model: Path, tmp_path: Path
) -> None:
    seen: list[str] = []

    def first_expired(handler: Handler, right: Reply) -> Reply:
        seen.append(handler.path)
        return forbidden(handler, right) if len(seen) == 1 else right

    report, _ = pull(server, evil, model, tmp_path / "m", first_expired)
    assert report.link_failures == 1
    assert report.linked > report.size / 2


def test_a_lying_store_is_left_alone_for_the_rest_of_a_pull(
    server: RunningHub, evil: HostileHub, model: Path, tmp_path: Path
) -> None:
    report, notes = pull(server, evil, model, tmp_path / "m", whole)
    assert report.linked == 0
    assert [text for text in notes if "is not read directly: it answered 200" in text]


def test_a_link_to_another_place_than_the_hub_named_is_not_followed(
    server: RunningHub,
    evil: HostileHub,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def link(store: FileStore, key: str, start: int, end: int, lifetime_s: int) -> str:
        return f"{evil.url}/{key}" if end == 1 else f"http://127.0.0.1:9/{key}"

    monkeypatch.setattr(FileStore, "link", link)
    with Hub(server.url, server.admin_token) as hub, pytest.raises(BadResponse, match="elsewhere"):
        hub.pull(NAME, to=tmp_path / "m")


@pytest.mark.parametrize(
    ("hub_url", "origin", "reason"),
    [
        ("https://hub.example", "http://s3.example", "would not be encrypted"),
        (
            "http://hub.example:8377",
            "http://127.0.0.1:{port}",
            "is this machine, and the hub is not",
        ),
        ("http://127.0.0.1:8377", "http://127.0.0.1:9", "cannot be reached from here"),
    ],
)
def test_a_hub_cannot_lead_a_client_where_it_should_not_go(
    evil: HostileHub, hub_url: str, origin: str, reason: str
) -> None:
    from deltahub.client.records import FrameLink, LinkedFrame

    notes: list[str] = []
    origin = origin.format(port=evil.server_address[1])
    evil.seen.clear()
    links = source.LinkSource(hub_url, notes.append)
    links.begin(origin)
    if links.is_on:
        link = FrameLink(f"{origin}/x", 0, 1, (LinkedFrame(0, 1),))
        with pytest.raises(source.StoreUnreachable) as failed, links.open(link):
            pass
        links.failed(failed.value)
    assert not links.is_on
    assert [text for text in notes if reason in text]
    assert evil.seen == []
    links.close()
