"""Whoever may push writes cards, names and messages; none of it becomes more than text on a page."""

import json
import re
from http.client import HTTPMessage

import pytest
import torch

from deltahub.server.web.content.markdown import render_card
from support.models.tiny_models import to_file
from support.registry.ingested import push_ingested
from support.service.hub import Answer
from support.web.model_family import World
from support.web.page_reader import Element, Page

MARKUP = (
    "\"'><img src=x onerror=probe()><script>probe()</script><b class=probe hx-get=/x"
    " data-hx-get=/x style=color:red>{{ 7919*7919 }}"
)
# ruff: noqa: E501
CARDS = (
    "<script>probe()</script>",
    "<SCRIPT SRC=//evil.example/x.js></SCRIPT>",
    "<img src=x onerror=probe()>",
    "<img src='x' style='position:fixed' srcset='//evil.example/x 1x'>",
    "![x](https://evil.example/x.png) ![y](//evil.example/y.png) ![z](data:image/png;base64,AAAA)",
    "![x](/lab/chat/resolve/main/x.png) ![y](../../../-/logout) ![z](/admin/hostile/resolve/../../x)",
    "[x](javascript:probe()) [y](JaVaScRiPt:probe()) [z](data:text/html,probe)",
    "<a href='java&#10;script:probe()'>x</a><a href='&#106;avascript:probe()'>y</a>",
    "<a href='\u0001javascript:probe()'>x</a><a href='vbscript:probe()' target=_top>y</a>",
    "<div hx-get='/x' data-hx-get='/x' hx-on:click='probe()' data-copy='rm -rf' data-confirm=x>x</div>",
    "<form action=//evil.example><input name=x autofocus onfocus=probe()><button>x</button></form>",
    "<iframe srcdoc='<script>probe()</script>'></iframe><object data=x></object><embed src=x>",
    "<svg onload=probe()><script>probe()</script><a xlink:href='javascript:probe()'>x</a></svg>",
    "<svg><animate onbegin=probe() attributeName=x></svg><math href='javascript:probe()'>x</math>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src onerror=probe()&gt;'>",
    "<noscript><p title='</noscript><img src=x onerror=probe()>'></noscript>",
    "<style>*{background:url(//evil.example)}</style><link rel=stylesheet href=//evil.example>",
    "<base href=//evil.example/><meta http-equiv=refresh content='0;url=//evil.example'>",
    "<!-- <b class=probe> --><!--[if IE]><script>probe()</script><![endif]--><![CDATA[<b>]]>",
    "<template><script>probe()</script></template><xmp><script>probe()</script></xmp>",
    "<details open ontoggle=probe()><summary id=content class=top>x</summary></details>",
    '```x" onmouseover="probe()\n<script>probe()</script>\n```',
    "<h1 id=notices>x</h1>\n\n# <img src=x onerror=probe()>\n\n# content",
    "\u202e<script>probe()</script>\u2028<script\u00a0>probe()</script>\uff1cscript\uff1e",
    "| a |\n|--|\n| <td style='x' onclick=probe()> |\n\n- [x] <input type=image src=//evil.example>",
    "<a href='https://x.example' rel=opener target=_blank ping=//evil.example>x</a>",
    '[^1]\n\n[^1]: <script>probe()</script>\n\n<https://x.example/"onmouseover=probe()>',
)
_ALLOWED = frozenset(
    "href title class src alt width height align id open start colspan rowspan loading rel tabindex".split()
)


@pytest.mark.parametrize("text", CARDS)
def test_a_card_keeps_nothing_that_runs_loads_or_reaches_outside(text: str) -> None:
    html = str(render_card(text.encode(), f"sha of {text}", "admin/hostile", "main"))
    page = Page.of(_answer(f"<article>{html}</article>"))
    inside = page.elements[1:]
    for each in inside:
        assert each.tag not in (
            "script", "style", "iframe", "object", "embed", "form", "input", "button", "svg", "math",
            "base", "meta", "link", "template", "noscript", "xmp", "title", "textarea",
        ), html  # fmt: skip
        assert set(each.attributes) <= _ALLOWED, html
        assert each.attributes.get("tabindex", "0") == "0", html
        assert re.fullmatch(r"(language-\S+)?", each.attributes.get("class", "")), html
        assert each.attributes.get("id", "card-").startswith("card-"), html
        if each.tag == "img":
            source = each.attributes.get("src", "")
            is_own = source.startswith("/admin/hostile/resolve/main/") and ".." not in source
            assert not source or is_own, html
        if each.tag == "a" and "href" in each.attributes:
            target = each.attributes["href"]
            assert re.match(r"(https?://|mailto:|/|#card-)", target), html
            assert each.attributes["rel"] == "nofollow noopener", html
    assert "<!--" not in html


def test_what_a_card_may_have_stays() -> None:
    text = (
        "---\nlicense: mit\n---\n# Title\n\n## Title\n\n~~old~~ https://x.example\n\n"
        "| a | b |\n|--:|:-:|\n| 1 | 2 |\n\n- [x] done\n- [ ] open\n\n```python\nx = 1\n```\n\n"
        "<details><summary>More</summary>\n\nhidden\n\n</details>\n\n"
        "[up](../x.md) [here](#title) [file](docs/a%20b.md) ![p](a/b.png)\n\n"
        '<p align="center"><img src="logo.png" width="40" alt="logo"></p>\n'
    )
    html = str(render_card(text.encode(), "good", "n/m", "dev/x", "docs"))
    for part in (
        '<h2 id="card-title">Title</h2>', '<h3 id="card-title-1">', "<s>old</s>",
        '<a href="https://x.example"', '<td align="right">1</td>', "☑ ", "☐ ",
        'class="language-python"', "<summary>More</summary>", 'href="/n/m/blob/dev%2Fx/x.md"',
        'href="#card-title"', 'href="/n/m/blob/dev%2Fx/docs/docs/a%20b.md"',
        'src="/n/m/resolve/dev%2Fx/docs/a/b.png"', 'src="/n/m/resolve/dev%2Fx/docs/logo.png"',
        '<p align="center">', 'width="40"',
    ):  # fmt: skip
        assert part in html, (part, html)
    assert "license" not in html


@pytest.mark.parametrize(
    "text",
    ["[" * 90_000, "![" * 45_000, "<div>" * 18_000, "- a\n" * 20_000, "# a\n" * 20_000,
     "*a **b " * 12_000, "> " * 40_000, "[^1]" * 20_000 + "\n\n[^1]: x", "a" * 1_000_000,
     "`" * 90_000, "|a" * 40_000 + "\n" + "|-" * 40_000],
)  # fmt: skip
def test_a_card_that_would_take_long_is_shown_as_text(text: str) -> None:
    html = render_card(text.encode(), f"long {text[:9]}", "n/m", "main")
    assert len(html) < 2 << 20


@pytest.fixture(scope="module")
def hostile(world: World) -> str:
    """The name of a model whose every text is hostile."""
    name = "admin/hostile"
    front = {"license": MARKUP, "pipeline_tag": MARKUP, "library_name": MARKUP, "tags": [MARKUP],
             "language": MARKUP, "datasets": [MARKUP], "base_model": MARKUP}  # fmt: skip
    tensors = {f"t{MARKUP}": torch.ones(64, 64), "javascript:probe()": torch.ones(2)}
    files = {
        "README.md": f"---\n{json.dumps(front)}\n---\n{' '.join(CARDS)}".encode(),
        "config.json": json.dumps({"model_type": MARKUP, MARKUP: MARKUP}).encode(),
        "notes.txt": MARKUP.encode(),
        "page.html": f"<html>{MARKUP}".encode(),
        "x.svg": f"<svg onload=probe()>{MARKUP}</svg>".encode(),
        "javascript&#58;'probe() onerror=probe() {{ 7+7 }} &lt;b&gt;.txt": b"x",
        "model.safetensors": to_file(tensors),
    }
    push_ingested(world.hub.registry, world.admin, name, files)
    world.hub.commit(name, {"notes.txt": b"other"}, message=f"{MARKUP}\n\n{MARKUP}")
    answer = world.hub.call("POST", f"/api/models/{name}/branch/javascript+x.onerror",
                            token=world.hub.admin_token, body={})  # fmt: skip
    assert answer.status == 200
    return name


def test_no_page_of_a_hostile_model_runs_what_its_author_wrote(world: World, hostile: str) -> None:
    waiting = ["/", "/admin", f"/{hostile}"]
    places = ("/tree/main", "/commits/main", "/commit/main", "/refs", "/lineage", "/use",
              "/tensors/main", "/settings")  # fmt: skip
    waiting += [f"/{hostile}{place}" for place in places]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        page = world.admins.get(path)
        assert page.status in (200, 307), (path, page.text[:200])
        if page.status == 200:
            _check(page, path)
        inside = f"/{hostile}/"
        waiting += [link for link in page.links
                    if link.startswith((inside, "/?")) and "/resolve/" not in link
                    and "/compare" not in link]  # fmt: skip
    assert any("/blob/" in path and "%7B%7B" in path for path in seen)
    assert any("/commit/" in path for path in seen)


def test_downloads_never_run_in_a_browser(world: World, hostile: str) -> None:
    for path in ("page.html", "x.svg"):
        answer = world.admins.fetch(f"/{hostile}/resolve/main/{path}")
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["Content-Disposition"].startswith("attachment")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        # What is shown of it is its source.
        page = world.admins.get(f"/{hostile}/blob/main/{path}")
        assert page.all("span", class_="line")
        assert not page.all("svg", onload="probe()")


def test_hostile_addresses_are_not_repeated_as_markup(world: World) -> None:
    attack = "%22%3E%3Cscript%3Eprobe()%3C/script%3E"
    for path in (f"/{attack}/x", f"/lab/{attack}", f"/lab/base/tree/{attack}",
                 f"/lab/base/blob/main/{attack}", f"/lab/base/commit/{attack}", f"/?q={attack}",
                 f"/?sort={attack}", f"/?task={attack}&ns={attack}", f"/?after={attack}",
                 f"/lab/base/tensors/main?q={attack}&file={attack}", "/lab/base/tree/main%00x",
                 f"/lab/base/tree/main?after={attack}", "/lab/base/tree/main?after=%00",
                 "/lab/base/refs?tags_after=%00", "/lab/base/commit/main?after=%00",
                 f"/lab/base/commits/main?after={attack[:40]}"):  # fmt: skip
        for browser in (world.admins, world.stranger):
            answer = browser.fetch(path)
            assert answer.status in (200, 404, 422), (path, answer.status)
            if answer.headers["Content-Type"].startswith("text/html"):
                _check(Page.of(answer), path)


def _check(page: Page, path: str) -> None:
    assert "nonce-" in page.headers["Content-Security-Policy"]
    for each in page.elements:
        if each.tag == "script":
            assert each.attributes["src"].startswith("/-/assets/"), (path, each)
        assert not _is_probe(each), (path, each)
        for name, value in each.attributes.items():
            assert not name.startswith("on"), (path, each)
            assert name != "style", (path, each)
            if name in ("href", "src", "action", "hx-get"):
                assert not re.match(r"\s*(javascript|data|vbscript):", value, re.I), (path, each)
            if name.startswith(("hx-", "data-hx-")):
                assert "probe" not in value or name == "hx-get", (path, each)
    assert "{{ 7919*7919 }}" in page.text or "62710561" not in page.text


def _is_probe(element: Element) -> bool:
    return element.attributes.get("class") == "probe" or element.attributes.get("src") == "x"


def _answer(html: str) -> Answer:
    return Answer(200, HTTPMessage(), html.encode())
