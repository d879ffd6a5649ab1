"""A model that is made by dropping its files on a page, by a person with a browser."""

from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from support.models.model_folders import tuned_tensors, write_model
from support.web.browsing import visitor
from support.web.filled_hub import FilledHub, run

# Files that the page sends in several parts.
LARGE = 70 << 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = write_model(tmp_path / "model", tuned_tensors(4e-4))
    (folder / "data").mkdir()
    (folder / "data" / "large.bin").write_bytes(Random(3).randbytes(LARGE))
    return folder


def make(page: Page, name: str) -> None:
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create, and add files").click()
    page.wait_for_url(f"**/-/upload/admin/{name}")


def test_a_folder_that_is_chosen_becomes_a_model_bit_for_bit(
    browser: Browser, hub: FilledHub, model: Path, tmp_path: Path
) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        page = person.open("/-/new")
        make(page, "dropped")
        page.locator("[data-folder]").set_input_files(model)
        page.get_by_label("Base model").fill("admin/base")
        page.get_by_role("button", name="Upload").click()
        page.wait_for_url(f"{hub.url}/admin/dropped", timeout=120_000)
    run(hub.hub, hub.token, tmp_path, "pull", "admin/dropped", "--to", "pulled")
    for path in ("README.md", "config.json", "model.safetensors", "data/large.bin"):
        here, there = (model / path).read_bytes(), (tmp_path / "pulled" / path).read_bytes()
        assert sha256(here).digest() == sha256(there).digest(), path


def test_files_that_are_dropped_are_uploaded(browser: Browser, hub: FilledHub) -> None:
    drop = """([zone, name, text]) => {
        const items = new DataTransfer();
        items.items.add(new File([text], name, {type: "text/plain"}));
        const options = {dataTransfer: items, bubbles: true, cancelable: true};
        for (const kind of ["dragover", "drop"]) zone.dispatchEvent(new DragEvent(kind, options));
    }"""
    with visitor(browser, hub.url) as person:
        person.log_in(hub.token)
        page = person.open("/-/new")
        make(page, "by-drop")
        zone = page.locator("[data-drop]").element_handle()
        page.evaluate(drop, [zone, "notes.txt", "dropped here"])
        expect(page.locator("[data-files]")).to_contain_text("notes.txt")
        page.get_by_role("button", name="Upload").click()
        page.wait_for_url(f"{hub.url}/admin/by-drop", timeout=60_000)
        person.open("/admin/by-drop/blob/main/notes.txt")
        expect(page.locator("#content")).to_contain_text("dropped here")


def test_an_upload_that_broke_goes_on_where_it_stopped(
    browser: Browser, hub: FilledHub, model: Path
) -> None:
    sent: list[str] = []

    def fail_after_the_first(route: Route) -> None:
        headers = route.request.headers
        sent.append(headers.get("content-range", "whole"))
        if sent[-1].startswith("bytes 0-") or "whole" in sent[-1]:
            route.continue_()
        else:
            route.abort()

    with visitor(browser, hub.url, is_checked=False) as person:
        person.log_in(hub.token)
        page = person.open("/-/new")
        make(page, "broken")
        page.route("**/v1/uploads/*", lambda route: (
            fail_after_the_first(route) if route.request.method == "PUT" else route.continue_()
        ))  # fmt: skip
        page.locator("input[type=file]").first.set_input_files(model / "data" / "large.bin")
        page.get_by_role("button", name="Upload").click()
        page.wait_for_timeout(6000)
        page.reload()
        page.unroute_all(behavior="ignoreErrors")
        sent.clear()
        page.on("request", lambda request: (
            sent.append(request.headers.get("content-range", "")) if request.method == "PUT" else 0
        ))  # fmt: skip
        page.locator("input[type=file]").first.set_input_files(model / "data" / "large.bin")
        page.get_by_role("button", name="Upload").click()
        page.wait_for_url(f"{hub.url}/admin/broken", timeout=120_000)
    assert sent, "the second attempt had something to send"
    assert not sent[0].startswith("bytes 0-"), sent


def test_who_may_not_write_is_told_so(browser: Browser, hub: FilledHub) -> None:
    with visitor(browser, hub.url) as person:
        person.log_in(hub.guest_token)
        page = person.open("/-/upload/admin/haiku", status=403)
        expect(page.get_by_role("heading", level=1)).to_have_text("You may not do that")
