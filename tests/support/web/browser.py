"""A browser without scripts: it keeps cookies, and sends forms with what their pages hold."""

import http.client
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from http.client import HTTPMessage
from http.cookies import Morsel, SimpleCookie
from urllib.parse import urlencode, urlsplit

from deltahub.server.browser_sessions import COOKIE

_CSRF = re.compile(r'name="csrf" value="([^"]+)"')


@dataclass(frozen=True)
class Page:
    """An answer to a browser."""

    status: int
    headers: HTTPMessage
    text: str

    @property
    def location(self) -> str:
        return self.headers["Location"] or ""

    @property
    def csrf(self) -> str:
        """The token of the page's forms."""
        found = _CSRF.search(self.text)
        assert found is not None, self.text[:2000]
        return unescape(found[1])

    @property
    def problem(self) -> str:
        """What the page says was wrong; empty if it does not."""
        found = re.search(r'role="alert">\s*(.*?)\s*</div>', self.text, re.DOTALL)
        return "" if found is None else unescape(re.sub(r"<[^>]+>", "", found[1])).strip()

    @property
    def cookies(self) -> dict[str, Morsel[str]]:
        """The cookies that this answer sets."""
        jar: SimpleCookie = SimpleCookie()
        for line in self.headers.get_all("Set-Cookie") or ():
            jar.load(line)
        return dict(jar)


@dataclass
class Browser:
    """A browser on one hub. It follows no redirects."""

    url: str
    jar: dict[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Page:
        return self.send("GET", path, headers=headers)

    def post(
        self,
        path: str,
        form: Mapping[str, str] | None = None,
        *,
        csrf: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Page:
        """Send a form. csrf: the token in it, by default one from the hub for this session."""
        if csrf is None:
            csrf = self.csrf()
        body = urlencode({**(form or {}), "csrf": csrf}).encode()
        more = {"Content-Type": "application/x-www-form-urlencoded", **(headers or {})}
        return self.send("POST", path, body, more)

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Page:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        sent = {**self.headers, **(headers or {})}
        if self.jar:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.jar.items())
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            page = Page(answer.status, answer.headers, answer.read().decode(errors="replace"))
        finally:
            connection.close()
        for name, morsel in page.cookies.items():
            if morsel["max-age"] == "0":
                self.jar.pop(name, None)
            else:
                self.jar[name] = morsel.value
        return page

    def csrf(self) -> str:
        """A token for forms of this session, from a page that everybody may see."""
        return self.get("/-/settings" if COOKIE in self.jar else "/-/login").csrf

    def log_in(self, token: str, next_path: str = "/") -> Page:
        page = self.post("/-/login/token", {"token": token, "next": next_path})
        assert page.status == 303, page.text
        return page

    @property
    def session(self) -> str | None:
        return self.jar.get(COOKIE)
