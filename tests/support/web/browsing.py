"""A real browser that visits a hub, and holds every page to the rules of all pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from support.needed import lacking
from support.web.chromium import find

ROOT: Final = Path(__file__).resolve().parents[3]
_AXE: Final = ROOT / "server/frontend/node_modules/axe-core/axe.min.js"
# Wide and narrow: a laptop, and a phone.
WIDTHS: Final = {"laptop": 1280, "phone": 390}
THEMES: Final = ("light", "dark")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium for all tests of a session."""
    program = find()
    if program is None:
        lacking("there is no Chromium on this machine (`python tests/support/web/chromium.py`)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Visitor:
    """One person's browser. faults: what no page may do, in words."""

    page: Page
    base: str
    faults: list[str] = field(default_factory=list)

    def open(self, path: str, status: int = 200) -> Page:
        """Open a page, and wait until it has loaded."""
        answer = self.page.goto(self.base + path)
        assert answer is not None
        assert answer.status == status, (path, answer.status)
        return self.page

    def log_in(self, token: str) -> None:
        """Log in by a token, as a person would."""
        self.open("/-/login")
        self.give_token(token)

    def give_token(self, token: str) -> None:
        """Fill in the form of the page of logins."""
        form = self.page.locator("form:has(#token)")
        # Where a password does, too, the form for a token is folded up.
        if not form.is_visible():
            self.page.locator("details:has(#token) > summary").click()
        self.page.locator("#token").fill(token)
        form.locator("button[type=submit]").click()
        self.page.wait_for_url(lambda url: "/login" not in url)

    def check(self) -> None:
        """Fail if the page logged an error, or asked another host for something."""
        assert self.faults == []

    def check_accessible(self) -> None:
        """Fail if axe finds something against WCAG 2.2 AA on this page."""
        if not _AXE.exists():
            lacking("axe-core is not installed (server/frontend/node_modules)")
        self.page.evaluate(_AXE.read_text())
        found: dict[str, Any] = self.page.evaluate(
            "() => axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
        )
        said = [
            (each["id"], each["help"], [node["html"][:200] for node in each["nodes"][:3]])
            for each in found["violations"]
        ]
        assert said == [], (self.page.url, said)


@contextmanager
def visitor(
    browser: Browser, base: str, *, width: int = 1280, theme: str = "light", is_checked: bool = True
) -> Iterator[Visitor]:
    """A new browser profile. is_checked: fail at the end if a page broke the rules of all pages."""
    # axe is no script of the hub: the policy of the pages would keep it out.
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=False,  # type: ignore[arg-type]
        reduced_motion="reduce", locale="en-GB", timezone_id="UTC",
    )  # fmt: skip
    page = context.new_page()
    found = Visitor(page, base)

    def on_console(message: ConsoleMessage) -> None:
        # A page that the test expects to be refused logs its status.
        if message.type == "error" and "the server responded with a status of" not in message.text:
            found.faults.append(f"{page.url}: console: {message.text}")

    def on_request(request: Request) -> None:
        if not request.url.startswith((base, "data:", "blob:")):
            found.faults.append(f"{page.url}: asked for {request.url}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: found.faults.append(f"{page.url}: {error}"))
    page.on("request", on_request)
    try:
        yield found
        if is_checked:
            found.check()
    finally:
        context.close()
