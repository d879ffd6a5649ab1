"""Model cards as HTML: Markdown as on GitHub, reduced to a short list of tags and attributes.

A card is written by anybody who may push. So what the Markdown parser makes is cleaned by an
allow list at the end, whatever came before: no scripts, no styles, no attributes that htmx reads,
and no image from another host, which would tell that host who reads the card.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from threading import Lock
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from mdit_py_plugins.footnote import footnote_plugin
from mdit_py_plugins.tasklists import tasklists_plugin

from deltahub.registry.cards.front_matter import body
from deltahub.registry.packs.block_cache import ByteCache

# Cards beyond these are shown as text: each takes the parser, or the cleaner, about two seconds.
MAX_RENDERED: Final = 96 << 10  # characters
_MOST: Final = {"[": 4000, "<": 4000, "\n": 6000}
_SPECIAL: Final = "[<*_`~|\\&\n"
_MOST_SPECIAL: Final = 20_000
_MAX_HTML: Final = 1 << 20
_MAX_PLAIN: Final = 256 << 10
# Before every id of a card, so that none is an id of the page around it.
ID_PREFIX: Final = "card-"
_TAGS: Final = frozenset(
    "a abbr b blockquote br caption code dd del details div dl dt em figcaption figure h1 h2 h3 h4"
    " h5 h6 hr i img ins kbd li mark ol p pre q s samp section small span strong sub summary sup"
    " table tbody td tfoot th thead tr u ul var".split()
)
_ALIGNED: Final = {tag: {"align"} for tag in "div h1 h2 h3 h4 h5 h6 p td th".split()}
_ATTRIBUTES: Final[dict[str, set[str]]] = {
    **_ALIGNED,
    "*": {"id"},
    "a": {"href", "title"},
    "abbr": {"title"},
    "code": {"class"},
    "details": {"open"},
    "img": {"src", "alt", "title", "width", "height", "align"},
    "ol": {"start"},
    "td": {"align", "colspan", "rowspan"},
    "th": {"align", "colspan", "rowspan"},
}
_NUMBERS: Final = frozenset({"width", "height", "start", "colspan", "rowspan"})
_LANGUAGE: Final = re.compile(r"language-[A-Za-z0-9+#._-]{1,40}")
_ID: Final = re.compile(r"[^\s\"'<>&`=]{1,120}")
_IMG: Final = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
_ATTRIBUTE: Final = re.compile(r"""\b(src|alt)\s*=\s*("[^"]*"|'[^']*'|[^\s>]+)""", re.IGNORECASE)
_HEADING: Final = re.compile(r"<(/?)h([1-5])\b", re.IGNORECASE)
_SCHEMES: Final = frozenset({"http", "https", "mailto"})
# (SHA-256 of the card, model, revision, folder) -> HTML. Limit: some hundreds of cards.
# Long lines and wide tables scroll, also by the keys of who uses no mouse.
_SET: Final = {
    "img": {"loading": "lazy"}, "pre": {"tabindex": "0"}, "table": {"tabindex": "0"},
}  # fmt: skip
_CACHE: Final[ByteCache[tuple[str, str, str, str], Markup]] = ByteCache(16 << 20)
# Parsing takes many times the size of a card, so cards are parsed one at a time.
_PARSING: Final = Lock()


def render_card(text: bytes, sha256: str, name: str, revision: str, folder: str = "") -> Markup:
    """Return the HTML of a card, without its front matter. sha256: of the text.

    name, revision: of the model, to which relative addresses belong. folder: of the card.
    """
    key = sha256, name, revision, folder
    known = _CACHE.get(key)
    if known is not None:
        return known
    shown = body(text)
    found = None
    if _is_quick(shown):
        with _PARSING:
            html = _render(shown, _Place(name, revision, folder))
        found = Markup(html) if len(html) <= _MAX_HTML else None
    if found is None:
        found = Markup('<pre tabindex="0">{}</pre>').format(shown[:_MAX_PLAIN])
    _CACHE.put(key, found, 2 * len(found) + 400)
    return found


def _is_quick(text: str) -> bool:
    return (
        len(text) <= MAX_RENDERED
        and all(text.count(char) <= most for char, most in _MOST.items())
        and sum(map(text.count, _SPECIAL)) <= _MOST_SPECIAL
    )


@dataclass(frozen=True)
class _Place:
    """Where a card lies: addresses in it become addresses of this hub."""

    name: str
    revision: str
    folder: str

    def image(self, source: str) -> str | None:
        """The address of an image of this repository; None for any other."""
        path = self._path(source)
        if path is not None:
            return f"{self._resolve}/{quote(path)}"
        parts = urlsplit(source)
        own = f"/{self.name}/resolve/"
        is_own = not parts.scheme and not parts.netloc and parts.path.startswith(own)
        return source if is_own and ".." not in unquote(parts.path).split("/") else None

    def link(self, target: str) -> str | None:
        """The address that a link leads to; None for one that is dropped."""
        if target.startswith("#"):
            return f"#{ID_PREFIX}{target[1:]}"
        path = self._path(target)
        if path is not None:
            fragment = urlsplit(target).fragment
            return f"/{self.name}/blob/{quote(self.revision, safe='')}/{quote(path)}" + (
                f"#{quote(fragment)}" if fragment else ""
            )
        try:
            parts = urlsplit(target)
        except ValueError:
            return None
        if parts.scheme in _SCHEMES or (not parts.scheme and target.startswith("/")):
            return target
        return None

    @property
    def _resolve(self) -> str:
        return f"/{self.name}/resolve/{quote(self.revision, safe='')}"

    def _path(self, address: str) -> str | None:
        """The path in the repository that a relative address names; None for other addresses."""
        try:
            parts = urlsplit(address.strip())
        except ValueError:
            return None
        if parts.scheme or parts.netloc or not parts.path or parts.path.startswith(("/", "\\")):
            return None
        path = posixpath.normpath(posixpath.join(self.folder, unquote(parts.path)))
        return None if path.startswith("..") or path == "." else path


def _render(text: str, place: _Place) -> str:
    markdown = _parser()
    environment: dict[str, Any] = {}
    tokens = markdown.parse(text, environment)
    _prepare(tokens, place)
    html = markdown.renderer.render(tokens, markdown.options, environment)

    def filtered(tag: str, attribute: str, value: str) -> str | None:
        return _filtered(place, tag, attribute, value)

    return nh3.clean(
        html,
        tags=set(_TAGS),
        attributes=_ATTRIBUTES,
        attribute_filter=filtered,
        url_schemes=set(_SCHEMES),
        link_rel="nofollow noopener",
        strip_comments=True,
        generic_attribute_prefixes=set(),
        set_tag_attribute_values=_SET,
    )


def _parser() -> MarkdownIt:
    # Not shared: a parser keeps state while it parses.
    markdown = MarkdownIt("gfm-like", {"html": True, "linkify": True})
    if markdown.linkify is not None:
        markdown.linkify.set({"fuzzy_link": False, "fuzzy_email": False})
    return markdown.use(tasklists_plugin).use(footnote_plugin)


def _prepare(tokens: Sequence[Token], place: _Place) -> None:
    """Give headings ids one level below the page's, and turn foreign images into links."""
    used: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"
        if token.type == "heading_open":
            token.attrSet("id", _slug(tokens[index + 1], used))
        if token.type in ("th_open", "td_open"):
            style = str(token.attrs.pop("style", ""))
            if style.startswith("text-align:"):
                token.attrSet("align", style.removeprefix("text-align:"))
        if token.type == "html_block":
            token.content = _own_html(token.content, place)
        if token.children:
            token.children = list(_inline(token.children, place))


def _inline(children: Sequence[Token], place: _Place) -> Iterator[Token]:
    for child in children:
        if child.type == "image" and place.image(str(child.attrs.get("src", ""))) is None:
            yield _html(_as_link(str(child.attrs.get("src", "")), child.content))
        elif child.type == "html_inline" and "task-list-item-checkbox" in child.content:
            yield _html("\u2611" if 'checked="checked"' in child.content else "\u2610")
        elif child.type == "html_inline":
            yield _html(_own_html(child.content, place))
        else:
            yield child


def _html(content: str) -> Token:
    return Token("html_inline", "", 0, content=content)


def _own_html(html: str, place: _Place) -> str:
    def replaced(match: re.Match[str]) -> str:
        found = {name.lower(): value.strip("\"'") for name, value in _ATTRIBUTE.findall(match[0])}
        source = found.get("src", "")
        return match[0] if place.image(source) else _as_link(source, found.get("alt", ""))

    shifted = _HEADING.sub(lambda match: f"<{match[1]}h{int(match[2]) + 1}", html)
    return _IMG.sub(replaced, shifted)


def _as_link(source: str, said: str) -> str:
    """A link in place of an image that is loaded from nowhere here."""
    is_web = source.startswith(("https://", "http://"))
    shown = escape(said or "image")
    return f'<a href="{escape(source)}">{shown}</a>' if is_web else shown


def _slug(inline: Token, used: dict[str, int]) -> str:
    """An id for a heading, as GitHub makes it, and each once."""
    words = re.sub(r"[^\w\- ]", "", inline.content.strip().lower()).replace(" ", "-")[:100]
    words = words or "section"
    n = used.get(words, 0)
    used[words] = n + 1
    return f"{words}-{n}" if n else words


def _filtered(place: _Place, tag: str, attribute: str, value: str) -> str | None:
    """The value of an allowed attribute; None drops it."""
    if attribute == "id":
        return ID_PREFIX + value if _ID.fullmatch(value) else None
    if attribute == "class":
        return value if _LANGUAGE.fullmatch(value) else None
    if attribute == "align":
        return value if value in ("left", "right", "center") else None
    if attribute in _NUMBERS:
        return value if value.isascii() and value.isdigit() and len(value) < 5 else None
    if attribute == "src":
        return place.image(value)
    if attribute == "href":
        return place.link(value)
    return value
