"""A comparison that is not over is stopped from its own page, by whom it belongs to."""

from collections.abc import Iterator

import pytest

from deltahub.registry.access import tokens
from deltahub.registry.jobs import queue
from support.web.model_family import World
from support.web.page_reader import Browser, Element

PATH = "/lab/chat/compare"


@pytest.fixture
def begun(world: World) -> Iterator[str]:
    """The address of a comparison that waits, because this hub has no worker."""
    fields = {each.attributes["name"]: each.attributes["value"]
              for each in world.admins.get(PATH).all("input", type="hidden")}  # fmt: skip
    answer = world.admins.post(PATH, fields, at=PATH)
    assert answer.status == 303, answer.text
    at = answer.headers["Location"]
    yield at
    world.admins.post(f"/-/jobs/{job_of(at)}/cancel", {}, at="/-/settings")


def job_of(address: str) -> str:
    return address.rpartition("job=")[2]


def cancel_forms(browser: Browser, address: str) -> list[Element]:
    page = browser.get(address)
    assert page.status == 200, page.text
    return [
        each for each in page.all("form") if each.attributes.get("action", "").endswith("cancel")
    ]


def press_cancel(browser: Browser, address: str) -> str:
    """Send the form as a browser does; the address that it leads to."""
    (form,) = cancel_forms(browser, address)
    assert "Stop this comparison?" in form.attributes["data-confirm"]
    field = browser.get(address).one("input", name="next")
    answer = browser.post(
        form.attributes["action"], {"next": field.attributes["value"]}, at=address
    )
    assert answer.status == 303, answer.text
    return answer.headers["Location"]


def test_a_comparison_that_waits_is_cancelled_and_can_be_asked_for_again(
    world: World, begun: str
) -> None:
    after = press_cancel(world.admins, begun)
    assert after.startswith(PATH)
    page = world.admins.get(after)
    assert "The comparison was cancelled." in page.text
    assert page.one("section", class_="compare-work").attributes["data-state"] == "absent"
    assert [each.text.strip() for each in page.all("button", class_="btn-primary")] == ["Compare"]
    assert world.admins.get(f"/-/jobs/{job_of(begun)}").one("span", data_state="cancelled")


def test_a_comparison_that_runs_says_that_it_stops(world: World, begun: str) -> None:
    with world.hub.registry.db.write() as session:
        assert queue.mark_running(session, job_of(begun))
    page = world.admins.get(press_cancel(world.admins, begun))
    work = page.one("section", class_="compare-work")
    assert work.attributes["data-state"] == "running"
    assert "Stops at its next step." in work.text
    assert cancel_forms(world.admins, begun) == []
    with world.hub.registry.db.write() as session:
        assert queue.mark_cancelled(session, job_of(begun))
    assert "The comparison was cancelled." in world.admins.get(begun).text


def test_a_command_in_what_it_waits_for_is_shown_as_code(world: World, begun: str) -> None:
    page = world.admins.get(begun)
    assert "Waits for" in page.text
    assert "`" not in page.text
    assert "deltahub" in page.one("section", class_="compare-work").text
    assert any("deltahub" in each.text for each in page.all("code"))


def test_nobody_else_is_offered_to_cancel_it(world: World, begun: str) -> None:
    readers = tokens.create_token(world.hub.registry, "admin", "read", "tests")
    for browser in (Browser(world.hub, readers), world.user, world.stranger):
        assert cancel_forms(browser, begun) == []


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example/", "//evil.example", "/\\evil.example"]
)
def test_a_form_that_cancels_leads_to_no_other_host(
    world: World, begun: str, elsewhere: str
) -> None:
    (form,) = cancel_forms(world.admins, begun)
    answer = world.admins.post(form.attributes["action"], {"next": elsewhere}, at=begun)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
