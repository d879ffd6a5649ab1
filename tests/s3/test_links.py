"""`pull` reads frames from the bucket itself, by links that the hub gives for a few minutes."""

import http.client
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import select

from deltahub.client import Hub, HubError, PullResult
from deltahub.client.api.endpoints import Api
from deltahub.client.records import FrameLinks
from deltahub.registry.db.models import Pack
from deltahub.registry.packs.copy import repack
from deltahub.registry.storage.keys import pack_key
from support.models.model_folders import base_tensors, contents, tuned_tensors, write_model
from support.models.tiny_models import to_file
from support.service.hub import RunningHub, running_hub
from support.service.seaweedfs import S3Service
from support.service.tcp_proxy import DamagingProxy

BASE, TUNE, SECRET = "admin/base", "admin/tune", "admin/secret"
SECOND = "second.safetensors"


class Door:
    """The only way to the bucket, for the hub and for clients. It can be shut and opened again."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._proxy = DamagingProxy(target)
        self._port = self._proxy.port
        self.url = self._proxy.url

    def shut(self) -> None:
        self._proxy.close()

    def open(self) -> None:
        self._proxy = DamagingProxy(self._target, port=self._port)


@dataclass
class Served:
    """A hub whose objects lie in a bucket, and the folders of its models."""

    hub: RunningHub
    door: Door
    folders: dict[str, Path]

    def pull(self, name: str, **options: bool) -> PullResult:
        """Pull a model with the hub's administrator, and compare every byte."""
        with Hub(self.hub.url, self.hub.admin_token, patience_s=3) as hub:
            report = hub.pull_with_report(name, sha256=True, **options)
        assert contents(report.path) == contents(self.folders[name])
        return report


@pytest.fixture(scope="module")
def served(service: S3Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("links")
    parts = urlsplit(service.endpoint)
    door = Door((parts.hostname or "", parts.port or 80))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in service.environment.items():
            patch.setenv(name, value)
        patch.setenv("DELTAHUB_STORE_URL", service.make_bucket(f"links-{secrets.token_hex(8)}"))
        patch.setenv("DELTAHUB_STORE_CACHE_BYTES", "0")
        patch.setenv("DELTAHUB_S3_ENDPOINT", door.url)
        patch.setenv("DELTAHUB_S3_LINK_ENDPOINT", door.url)
        patch.setenv("DELTAHUB_CACHE", str(folder / "cache"))
        folders = {
            BASE: write_model(folder / "base", base_tensors()),
            TUNE: write_model(folder / "tune", tuned_tensors()),
            SECRET: write_model(folder / "secret", tuned_tensors(1e-2)),
        }
        # Two files that are large enough for recipes.
        (folders[BASE] / SECOND).write_bytes(to_file(tuned_tensors(1e-3)))
        with running_hub(folder / "data", with_worker=True) as running:
            with Hub(running.url, running.admin_token) as hub:
                hub.push(folders[BASE], BASE)
                hub.push(folders[TUNE], TUNE, base=BASE)
                hub.push(folders[SECRET], SECRET, private=True)
            yield Served(running, door, folders)
    door.shut()


@pytest.fixture(autouse=True)
def move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that switches to empty caches, as on another machine. Called once already."""
    numbers = iter(range(100))

    def to_another_machine() -> None:
        folder = tmp_path / f"machine-{next(numbers)}"
        monkeypatch.setenv("DELTAHUB_CACHE", str(folder / "deltahub"))
        monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hf"))

    to_another_machine()
    return to_another_machine


def after_links(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Call `act` with the number of the answer after each answer with links, from 1."""
    ask, n_answers = Api.get_frame_links, 0

    def asked(api: Api, name: str, commit: str, tensors: Sequence[str], origin: str) -> FrameLinks:
        nonlocal n_answers
        page = ask(api, name, commit, tensors, origin)
        n_answers += 1
        act(n_answers)
        return page

    monkeypatch.setattr(Api, "get_frame_links", asked)


def links_of(served: Served, name: str, token: str | None, tensors: list[str]) -> Any:
    path = f"/v1/repositories/{name}/frames/links"
    return served.hub.call("POST", path, token=token, body={"tensors": tensors})


def tensors_of(served: Served, name: str) -> list[str]:
    path = f"/v1/repositories/{name}/recipes/model.safetensors"
    answer = served.hub.call("GET", path, token=served.hub.admin_token).json()
    assert answer["link_origin"] == served.door.url
    return [tensor["id"] for tensor in answer["tensors"]]


def fetch(url: str, **headers: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_tensors_come_from_the_bucket(served: Served, move: Callable[[], None]) -> None:
    sent: dict[bool, int] = {}
    for has_links in (False, True):
        move()
        before = served.hub.server.traffic.sent_bytes
        for name in (BASE, TUNE):
            report = served.pull(name, links=has_links)
            assert report.link_failures == 0
            assert bool(report.linked) == has_links
        sent[has_links] = served.hub.server.traffic.sent_bytes - before
    # What is left: recipes, links, the small files.
    assert sent[True] < sent[False] / 4


def test_who_may_not_read_gets_no_link(served: Served) -> None:
    stranger = served.hub.user(f"eve{secrets.token_hex(4)}")
    tensors = tensors_of(served, SECRET)
    for token in (stranger, None):
        assert links_of(served, SECRET, token, tensors).status == 404
        # Nor by naming the tensors at a model that everybody may read.
        assert links_of(served, BASE, token, tensors).json()["links"] == []
    assert links_of(served, SECRET, served.hub.admin_token, tensors).json()["links"]


def test_a_link_gives_its_range_and_no_other(served: Served) -> None:
    answer = links_of(served, SECRET, served.hub.admin_token, tensors_of(served, SECRET))
    link = answer.json()["links"][0]
    start, end = link["start"], link["end"]
    status, body = fetch(link["url"], Range=f"bytes={start}-{end - 1}")
    assert (status, len(body)) == (206, end - start)
    for other in (
        f"bytes={start}-{end}",
        f"bytes={start}-",
        "bytes=0-0",
        f"bytes={start + 1}-{end}",
    ):
        assert fetch(link["url"], Range=other)[0] == 403
    assert fetch(link["url"])[0] == 403


def test_links_that_expired_are_asked_for_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = served.hub.registry
    short = registry.settings.model_copy(update={"s3_link_lifetime_s": 3})
    monkeypatch.setattr(registry, "settings", short)
    after_links(monkeypatch, lambda n: time.sleep(4.5) if n == 1 else None)
    report = served.pull(BASE)
    assert report.link_failures >= 1
    assert report.linked > report.size / 2


def test_packs_that_moved_are_asked_for_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collect(n: int) -> None:
        if n > 1:
            return
        registry = served.hub.registry
        with registry.db.read() as session:
            packs = session.scalars(select(Pack.id).where(Pack.state == "live")).all()
        assert repack(registry, packs).condemned == len(packs)
        for pack in packs:
            registry.store.delete(pack_key(pack))

    after_links(monkeypatch, collect)
    report = served.pull(BASE)
    assert report.link_failures >= 1
    assert report.linked > report.size / 2


def test_without_the_service_the_pull_ends_and_goes_on_later(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_links(monkeypatch, lambda n: served.door.shut() if n == 2 else None)
    with pytest.raises(HubError) as failed:
        served.pull(BASE)
    served.door.open()
    assert failed.value.code in ("unavailable", "hub_unreachable")
    report = served.pull(BASE)
    # The first file had come, and is not fetched again.
    assert report.fetched_files == (SECOND,)
    assert report.linked > 0
