"""Asks for jobs by the forms of the pages, without a browser, and waits for what comes of them."""

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from support.service.hub import RunningHub
from support.web.page_reader import Browser, Page


class Place(Protocol):
    """A running hub with a worker, and the token of the one who asks."""

    @property
    def hub(self) -> RunningHub: ...

    @property
    def token(self) -> str: ...


def asked(place: Place, browser: Browser, kind: str, fields: Mapping[str, str]) -> Page:
    """The page of the job that a form asks for, when the job is over."""
    at = f"/-/jobs/new/{kind}"
    sent = {each.attributes["name"]: each.attributes.get("value", "")
            for each in browser.get(at).all("input")
            if "name" in each.attributes and each.attributes.get("type") != "checkbox"}  # fmt: skip
    answer = browser.post(at, {**sent, **fields}, at=at)
    assert answer.status == 303, answer.text
    return finished(place, browser, answer)


def finished(place: Place, browser: Browser, answer: Page) -> Page:
    path = urlsplit(answer.headers["Location"]).path
    assert place.hub.wait_for_job(path.rpartition("/")[2], place.token)["state"] == "done"
    return browser.get(path)


def started(place: Place, browser: Browser, estimated: Page) -> Page:
    """The page of the job that the estimate's button starts."""
    (form,) = [
        each for each in estimated.all("form") if each.attributes["action"].endswith("start")
    ]
    path = form.attributes["action"]
    answer = browser.post(path, {}, at=path.removesuffix("/start"))
    return finished(place, browser, answer)
