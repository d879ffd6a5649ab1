"""The page that compares two revisions, over HTTP as a browser asks for it."""

import http.client
import re
import time
from collections.abc import Iterator
from html import unescape
from urllib.parse import urlencode

import pytest
import torch

from support.models import tiny_models as tiny
from support.service.hub import Answer, RunningHub, running_hub

FILE = "model.safetensors"
N_LAYERS = 2


def layers(tensors: tiny.Tensors) -> tiny.Tensors:
    return {
        f"model.layers.{i}.{k}": v.clone() for i in range(N_LAYERS) for k, v in tensors.items()
    } | {"model.norm.weight": torch.ones(8)}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """A hub with a worker, and ann/base, ann/tuned, which declares it, and ann/empty."""
    with running_hub(tmp_path_factory.mktemp("compare") / "data", with_worker=True) as running:
        token = running.user("ann")
        running.create("ann/empty", token=token)
        for name, tensors, base in (
            ("base", tiny.base(), {}), ("tuned", tiny.task(0), {"base": "ann/base"}),
        ):  # fmt: skip
            running.create(f"ann/{name}", token=token)
            files = {FILE: tiny.to_file(layers(tensors))}
            job = running.commit(f"ann/{name}", files, token, **base)["job_id"]
            assert running.wait_for_job(job, token)["state"] == "done"
        yield running


class Browser:
    """Keeps the cookie of a login, and sends forms with the page's token."""

    def __init__(self, hub: RunningHub, token: str | None) -> None:
        self._hub = hub
        self._cookie = ""
        if token is not None:
            answer = self.post("/-/login/token", "/-/login", token=token)
            assert answer.status == 303, answer.body
            self._cookie = "; ".join(
                each.partition(";")[0] for each in answer.headers.get_all("Set-Cookie") or ()
            )

    def get(self, path: str) -> Answer:
        headers = {"Cookie": self._cookie} if self._cookie else {}
        return self._hub.call("GET", path, headers=headers)

    def post(self, path: str, form_at: str, **fields: str) -> Answer:
        page = self.get(form_at)
        (csrf, *_) = re.findall(r'name="csrf" value="([^"]*)"', page.body.decode())
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": self._hub.url,
            **({"Cookie": self._cookie} if self._cookie else {}),
        }
        body = urlencode({"csrf": unescape(csrf), **fields}).encode()
        connection = http.client.HTTPConnection(*self._hub.address, timeout=60)
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()


def text(answer: Answer) -> str:
    return unescape(answer.body.decode())


def compared(browser: Browser, path: str = "/ann/tuned/compare") -> str:
    """The page of the comparison, which is asked for if there is none."""
    page = text(browser.get(path))
    if "data-comparison=" not in page:
        (base,) = re.findall(r'type="hidden" name="base" value="([^"]*)"', page)
        (other,) = re.findall(r'type="hidden" name="with" value="([^"]*)"', page)
        begun = browser.post(path, path, base=base, **{"with": other})
        assert begun.status == 303, begun.body
        path = begun.headers["Location"]
    deadline = time.monotonic() + 60
    while "data-comparison=" not in (page := text(browser.get(path))):
        # Until the report is there, the page asks for itself again.
        assert 'hx-trigger="load delay:1s"' in page, page
        assert re.search(r'data-state="(queued|running)"', page)
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert 'hx-trigger="load' not in page
    return page


@pytest.fixture(scope="module")
def admin(hub: RunningHub) -> Browser:
    return Browser(hub, hub.admin_token)


@pytest.fixture(scope="module")
def done(hub: RunningHub, admin: Browser) -> str:
    page = text(admin.get("/ann/tuned/compare"))
    assert 'value="ann/tuned@main"' in page
    assert re.search(r'value="ann/base@[0-9a-f]{12}"', page)
    assert 'data-state="absent"' in page
    assert 'data-read="10"' in page  # tensors that differ
    return compared(admin)


def test_the_base_and_main_are_compared_once_for_all_readers(hub: RunningHub, done: str) -> None:
    assert 'id="tensors"' in done
    stranger = Browser(hub, None)
    assert "data-comparison=" in text(stranger.get("/ann/tuned/compare"))
    chosen = "/ann/base/compare?" + urlencode({"base": "main", "with": "ann/tuned"})
    assert "data-comparison=" in text(stranger.get(chosen))


@pytest.mark.parametrize("view", ["relative", "same", "rank"])
def test_the_heat_map_has_a_cell_for_each_layer_and_module(
    admin: Browser, done: str, view: str
) -> None:
    page = text(admin.get(f"/ann/tuned/compare?view={view}"))
    (drawn,) = re.findall(r'<svg class="heat".*?</svg>', page, re.DOTALL)
    cells = re.findall(r'<rect class="q(\d|x)".*?<title>(.*?)</title>', drawn)
    assert len(cells) == N_LAYERS * 4
    by_name = {title.partition(":")[0]: shade for shade, title in cells}
    assert by_name["model.layers.0 head"] == "0"
    assert int(by_name["model.layers.1 up"]) > 0
    (table,) = re.findall(r'<details class="heat-table">.*?</table>', page, re.DOTALL)
    assert len(re.findall(r"<td", table)) == len(cells)
    assert re.search(r"model\.<wbr>norm", page)  # outside of the layers
    assert " style=" not in page


def test_tensors_are_filtered_sorted_and_shown_one_by_one(admin: Browser, done: str) -> None:
    def rows(query: str) -> list[str]:
        return re.findall(r'data-tensor="([^"]*)"', text(admin.get(f"/ann/tuned/compare?{query}")))

    assert len(rows("")) == 13
    assert set(rows("q=UP+layers.1")) == {"model.layers.1.up.weight", "model.layers.1.up.bias"}
    assert rows("layer=model.layers.0&module=head") == ["model.layers.0.head.weight"]
    assert rows("layer=&module=model.norm") == ["model.norm.weight"]
    assert rows("sort=name") == sorted(rows(""))
    assert rows("sort=name&reverse=true") == sorted(rows(""), reverse=True)
    assert rows("page=2") == []
    page = text(admin.get("/ann/tuned/compare?tensor=model.layers.1.up.weight"))
    assert 'class="histogram"' in page
    (blocks,) = re.findall(r'<svg class="blocks.*?</svg>', page, re.DOTALL)
    assert 'viewBox="0 0 64 64"' in blocks
    # The outlines of all classes together cover each block once.
    covered = sum(int(n) for n in re.findall(r"h(\d+)v1", blocks))
    assert covered == 64 * 64
    same = text(admin.get("/ann/tuned/compare?tensor=model.layers.1.head.weight"))
    assert "the same in both" in same
    assert 'class="histogram"' not in same
    assert admin.get("/ann/tuned/compare?tensor=absent").status == 404


def test_wrong_names_are_told_at_the_form(admin: Browser, done: str) -> None:
    for query, status in (
        ("with=ann/nothing", 404), ("base=nothing&with=ann/tuned", 404), ("with=/@", 422),
    ):  # fmt: skip
        answer = admin.get(f"/ann/tuned/compare?{query}")
        assert answer.status in (404, 422), (query, status)
        assert 'id="fault"' in text(answer)
    assert admin.get("/ann/nothing/compare").status == 404
    assert admin.get("/ann/tuned/compare?view=sound").status == 422
    empty = text(admin.get("/ann/empty/compare"))
    assert "no weights to compare yet" in empty


def test_a_stranger_is_asked_to_log_in_before_a_job_begins(hub: RunningHub, done: str) -> None:
    page = text(Browser(hub, None).get("/ann/base/compare?with=ann/base"))
    assert "/-/login?next=" in page
    assert 'name="csrf"' not in page


def test_a_private_model_is_for_a_stranger_what_nothing_is(
    hub: RunningHub, admin: Browser, done: str
) -> None:
    token = hub.user("bob")
    hub.create("bob/own", private=True, token=token)
    files = {FILE: tiny.to_file(layers(tiny.task(1)))}
    job = hub.commit("bob/own", files, token, base="ann/base")["job_id"]
    assert hub.wait_for_job(job, token)["state"] == "done"
    assert "data-comparison=" in compared(Browser(hub, token), "/bob/own/compare")
    stranger = Browser(hub, None)
    private = text(stranger.get("/ann/base/compare?with=bob/own"))
    nothing = text(stranger.get("/ann/base/compare?with=bob/not"))
    assert "bob/own" in private

    def bare(page: str, name: str) -> str:
        (found,) = re.findall(r'<div id="comparison">.*?</main>', page, re.DOTALL)
        return str(found).replace(name, "NAME")

    assert bare(private, "bob/own") == bare(nothing, "bob/not")
    assert stranger.get("/bob/own/compare").status == 404
