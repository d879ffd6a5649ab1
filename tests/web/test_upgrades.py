"""A base is upgraded on pages: its plan, a task that is shown, the table, and the way back."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from support.service.hub import ServedHub, served_hub
from support.transfer.running import prompts, write_base, write_teacher
from support.web.browsing import visitor
from support.web.filled_hub import run
from support.web.pictures import take_picture


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[ServedHub, str]]:
    """A hub with a base, its newer version, and two adapters; its token."""
    folder = Path(tempfile.mkdtemp(prefix="deltahub-"))
    try:
        models = folder / "models"
        models.mkdir()
        for name in ("v1", "twin"):
            write_base(name, models / name)
        for name in ("digits", "letters"):
            write_teacher(models / name, "admin/base-v1")
        changed = models / "letters" / "adapter_config.json"
        told = json.loads(changed.read_text()) | {"init_lora_weights": "pissa"}
        changed.write_text(json.dumps(told))
        with served_hub(folder / "data") as hub:
            token = hub.admin_token
            run(hub, token, models, "push", "v1", "admin/base-v1")
            run(hub, token, models, "push", "twin", "admin/base-v2", "--base", "none")
            for name in ("digits", "letters"):
                run(hub, token, models, "push", name, f"admin/{name}", "--base", "admin/base-v1")
            yield hub, token
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_one_adapter_is_moved(browser: Browser, place: tuple[ServedHub, str]) -> None:
    hub, token = place
    with visitor(browser, hub.url) as person:
        person.log_in(token)
        page = person.open("/-/jobs/new/transfer_adapter?adapter=admin/digits&base=admin/base-v2")
        page.locator("#field-name").fill("admin/moved")
        page.locator("#field-rungs").fill("copy")
        page.locator("#field-prompts").fill(prompts())
        page.locator("#field-template").fill("{input}=")
        page.locator("#field-max_loss").fill("1")
        page.get_by_text("Training and sampling").click()
        page.locator("#field-max_new_tokens").fill("3")
        page.locator("#field-n").fill("100")
        page.get_by_role("button", name="Estimate first").click()
        expect(page.get_by_role("button", name="Start it")).to_be_visible(timeout=90_000)
        expect(page.locator("#content")).to_contain_text("copy")
        person.check_accessible()
        take_picture(page, "move-estimate-laptop-light")
        page.get_by_role("button", name="Start it").click()
        expect(page.get_by_role("heading", level=1).locator("a")).to_have_text(
            "admin/moved", timeout=180_000
        )
        person.check_accessible()
        page = person.open("/-/reports/admin/moved")
        expect(page.locator("#content")).to_contain_text("It was moved by copy")
        person.check_accessible()
        take_picture(page, "move-report-laptop-light")


def test_a_base_is_upgraded_and_put_back(browser: Browser, place: tuple[ServedHub, str]) -> None:
    hub, token = place
    with visitor(browser, hub.url) as person:
        person.log_in(token)
        page = person.open("/-/jobs/new/upgrade_base?from_base=admin/base-v1&base=admin/base-v2")
        page.locator("#field-policy").select_option("ask")
        page.locator("#field-rungs").fill("copy\nactivation_map")
        page.locator("#field-max_loss").fill("1")
        page.get_by_text("Training and sampling").click()
        page.locator("#field-n").fill("100")
        page.get_by_role("button", name="Start without an estimate").click()
        page.wait_for_url("**/-/jobs/*")
        expect(page.locator("[data-job-state=done]")).to_be_visible(timeout=90_000)
        person.check_accessible()
        page.get_by_role("link", name="Open the upgrade").click()
        page.wait_for_url("**/-/upgrades/*")
        address = page.url.removeprefix(hub.url)
        expect(page.locator("[data-upgrade-state=proposed]")).to_be_visible()
        expect(page.locator("li", has_text="pissa").first).to_be_visible()
        person.check_accessible()
        row = page.locator("tr", has=page.get_by_role("link", name="admin/digits", exact=True))
        row.get_by_text("Show its task").click()
        row.locator("textarea").fill(prompts())
        row.get_by_label("What the model is given").fill("{input}=")
        row.get_by_label("Tokens of an answer, at most").fill("3")
        row.get_by_role("button", name="Approve").click()
        page.wait_for_url(f"**{address}")
        wait_for(page, "published")
        expect(page.get_by_text("choice")).to_be_visible()
        expect(page.get_by_role("link", name="admin/digits-base-v2", exact=True)).to_be_visible()
        person.check_accessible()
        take_picture(page, "upgrade-laptop-light")
        # The base leads to it.
        page = person.open("/admin/base-v1")
        page.get_by_role("link", name="to admin/base-v2").click()
        page.wait_for_url(f"**{address}")
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Put it back").click()
        wait_for(page, "put_back")
        person.open("/admin/digits-base-v2", status=404)


def test_a_guest_sees_the_table_and_no_button(
    browser: Browser, place: tuple[ServedHub, str]
) -> None:
    with visitor(browser, place[0].url) as person:
        page = person.open("/-/upgrades")
        page.get_by_role("link", name="1", exact=True).click()
        page.wait_for_url("**/-/upgrades/1")
        expect(page.locator("tbody").get_by_role("link", name="admin/digits")).to_be_visible()
        assert page.locator("main button[type=submit]").count() == 0
        person.check_accessible()
        person.open("/-/upgrades/99", status=404)


def wait_for(page: Page, state: str) -> None:
    """Load the page again until an adapter is in this state: the worker notes it in seconds."""
    deadline = time.monotonic() + 180
    while not page.locator(f"[data-move-state={state}]").count():
        assert time.monotonic() < deadline, page.locator("#content").inner_text()
        page.wait_for_timeout(1000)
        page.reload()
