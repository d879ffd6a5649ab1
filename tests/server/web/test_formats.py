"""Texts of errors and reports on pages."""

import pytest

from deltahub.server.web.formats import sentence, with_code


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


def test_a_sentence_begins_with_a_capital_unless_it_begins_with_a_name() -> None:
    assert sentence("the disk is full") == "The disk is full."
    assert sentence("lab/digits has no kit") == "lab/digits has no kit."
    assert sentence("trans_lora: not possible!") == "trans_lora: not possible!"
    assert sentence("a/b is no name?") == "a/b is no name?"
