"""Texts of errors and reports on pages."""

import pytest

from deltahub.server.web.formats import with_code


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("no code", "no code"),
        ("start one with `deltahub worker`", "start one with <code>deltahub worker</code>"),
        ("`a` and `b`", "<code>a</code> and <code>b</code>"),
        ("one ` alone", "one ` alone"),
        ("`a` and ` alone", "<code>a</code> and ` alone"),
        ("<b> `<i>`", "&lt;b&gt; <code>&lt;i&gt;</code>"),
        ("", ""),
    ],
)
def test_what_stands_between_backticks_is_code_and_markup_is_text(text: str, html: str) -> None:
    assert with_code(text) == html
