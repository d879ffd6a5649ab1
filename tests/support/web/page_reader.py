"""Reads pages of a hub as a browser does: with a session's cookie, and as elements and text."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.client import HTTPMessage
from urllib.parse import urlencode

from support.service.hub import Answer, Hub


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""


class _Parser(HTMLParser):
    _VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in self._VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        while self._open and any(each.tag == tag for each in self._open):
            if self._open.pop().tag == tag:
                return

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        for each in self._open:
            each.text += data


@dataclass
class Page:
    """A page as it was answered. elements: in order of the page, each with the text inside."""

    status: int
    headers: HTTPMessage
    body: str
    elements: list[Element] = field(default_factory=list)
    text: str = ""

    @classmethod
    def of(cls, answer: Answer) -> "Page":
        body = answer.body.decode()
        parser = _Parser()
        parser.feed(body)
        parser.close()
        text = " ".join("".join(parser.text).split())
        return cls(answer.status, answer.headers, body, parser.elements, text)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """The elements of a tag whose attributes have these values; `class_` holds one class."""
        return [each for each in self.elements if each.tag == tag and _fits(each, attributes)]

    def one(self, tag: str, **attributes: str) -> Element:
        (found,) = self.all(tag, **attributes)
        return found

    @property
    def links(self) -> list[str]:
        return [each.attributes["href"] for each in self.all("a") if "href" in each.attributes]


def _fits(element: Element, attributes: dict[str, str]) -> bool:
    for name, value in attributes.items():
        found = element.attributes.get(name.rstrip("_").replace("_", "-"))
        if found is None or (value not in found.split() if name == "class_" else found != value):
            return False
    return True


class Browser:
    """A browser with the session of a token's owner; without a token, a stranger's."""

    def __init__(self, hub: Hub, token: str | None = None) -> None:
        self._hub = hub
        self._cookie: str | None = None
        if token is not None:
            answer = self.post("/-/login/token", {"token": token}, at="/-/login")
            assert answer.status == 303, answer.body
            self._cookie = answer.headers["Set-Cookie"].partition(";")[0]

    @property
    def session(self) -> str:
        """The cookie of the session."""
        assert self._cookie is not None
        return self._cookie

    def get(self, path: str, **headers: str) -> Page:
        return Page.of(self.fetch(path, **headers))

    def fetch(self, path: str, **headers: str) -> Answer:
        return self._hub.call("GET", path, headers=self._headers(headers))

    def post(self, path: str, fields: dict[str, str], *, at: str) -> Page:
        """Send a form that stands on the page `at`."""
        token = self.get(at).all("input", name="csrf")[-1].attributes["value"]
        body = urlencode({**fields, "csrf": token}).encode()
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return Page.of(self._hub.call("POST", path, body=body, headers=self._headers(kind)))

    def _headers(self, headers: dict[str, str]) -> dict[str, str]:
        return headers if self._cookie is None else {**headers, "Cookie": self._cookie}
