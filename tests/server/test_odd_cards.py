"""Odd and hostile model cards and configurations: they cost little and break nothing."""

import base64
import json
import logging
import math
import time
from hashlib import sha256
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.registry.cards.front_matter import MAX_FRONT_BYTES, BadCard, front_matter
from deltahub.registry.cards.plain_values import MAX_NESTING, plain, read_json
from support.service.hf_door import create_model, error_of, header, send_commit, small
from support.service.hub import RunningHub

# Each case takes far less than this; without limits it took 40 s or never ended.
QUICK_S = 5


def card(text: str) -> bytes:
    return f"---\n{text}\n---\n# A model\n".encode()


def aliases(line: str, levels: int) -> str:
    """Nested aliases: each line names the line before nine times. line: has %s for the names."""
    lines = [line % ", ".join([f"*a{i - 1}"] * 9) for i in range(1, levels)]
    return "\n".join(
        ["a0: &a0 {k: v}", *(f"a{i}: &a{i} {{{one}}}" for i, one in enumerate(lines, 1))]
    )


COSTLY = {
    "merge keys": aliases("<<: [%s]", 9),
    "aliases": aliases("x: [%s]", 9),
    "long text": f"a: &a {'x' * 30_000}\nb: [{', '.join(['*a'] * 5_000)}]",
    "itself": "a: &a [*a]",
    "deep": "a: " + "[" * 20_000,
    "deep by aliases": "\n".join(
        ["a0: &a0 1", *(f"a{i}: &a{i} {'[' * 30}*a{i - 1}{']' * 30}" for i in range(1, 50))]
    ),
    "many": "a: [" + "[]," * 80_000 + "]",
    "large": "a: [" + "[]," * 300_000 + "]",
}


@pytest.mark.parametrize("kind", COSTLY)
def test_a_card_that_would_cost_much_is_refused_at_once(kind: str) -> None:
    begin = time.monotonic()
    with pytest.raises(BadCard) as caught:
        front_matter(card(COSTLY[kind]))
    assert time.monotonic() - begin < QUICK_S
    assert str(caught.value).startswith("the front matter ")


def test_without_a_token_a_costly_card_is_refused_at_once(hub: RunningHub) -> None:
    for kind, text in COSTLY.items():
        if len(text) > 90_000:  # above this hub's limit for JSON bodies
            continue
        begin = time.monotonic()
        answer = hub.call("POST", "/api/validate-yaml", body={"content": card(text).decode()})
        assert time.monotonic() - begin < QUICK_S
        assert answer.status == 400, kind
        assert json.loads(answer.body)["errors"][0]["message"].startswith("the front matter ")


def test_a_card_as_large_as_those_of_evaluations_is_taken() -> None:
    results = [
        {"task": {"type": "Retrieval"}, "dataset": {"name": f"MTEB {i}", "revision": "f" * 40},
         "metrics": [{"type": f"ndcg_at_{at}", "value": 12.345} for at in (1, 3, 5, 10, 100)]}
        for i in range(500)
    ]  # fmt: skip
    text = yaml.safe_dump({"tags": ["mteb"], "model-index": [{"name": "m", "results": results}]})
    assert 120_000 < len(text) < MAX_FRONT_BYTES
    assert front_matter(card(text))["model-index"][0]["results"] == results


@pytest.mark.parametrize("text", ["a: &a 1", "a: &a {n: 1}", "a: [&a [1]]", "&a k: 1", "a: *b"])
def test_anchors_and_aliases_are_refused_with_their_place(text: str) -> None:
    with pytest.raises(BadCard, match=r"line 2, column \d+: anchors \(&\) and aliases \(\*\)"):
        front_matter(card(text))


def test_values_and_levels_have_limits() -> None:
    with pytest.raises(BadCard, match="more than 32768 values"):
        front_matter(card("a: [" + "1," * 32_768 + "]"))
    with pytest.raises(BadCard, match=f"deeper than {MAX_NESTING} levels"):
        front_matter(card("a: " + "[" * MAX_NESTING + "]" * MAX_NESTING))
    assert front_matter(card("a: " + "[" * (MAX_NESTING - 1) + "]" * (MAX_NESTING - 1)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"\\ud83d\\ude00 x"', "\U0001f600 x"),
        ('"\\uD83D\\uDE00"', "\U0001f600"),
        ('"\\ud800 x"', "\ufffd x"),
        ('"\\\\ud83d"', "\\ud83d"),
        ("0x" + "f" * 5000, "0x" + "f" * 5000),
        ("9" * 5000, "9" * 5000),
        ("!!int " + "9" * 5000, "9" * 5000),
        (str(2**64), str(2**64)),
        (str(2**64 - 1), 2**64 - 1),
        (".inf", None),
        (".nan", None),
        ("2020-01-02", "2020-01-02"),
        ("2020-01-02 03:04:05", "2020-01-02T03:04:05"),
        ("'2020-01-02'", "2020-01-02"),
        ("!!str 5", "5"),
        ("~", None),
        ("<<", "<<"),
        ("=", "="),
        ("!!binary aGk=", "aGk="),
        ("{1: x, yes: y, 2020-01-02: z}", {"1": "x", "yes": "y", "2020-01-02": "z"}),
    ],
)
def test_odd_values_are_made_plain(text: str, value: Any) -> None:
    assert front_matter(card(f"a: {text}")) == {"a": value}


@pytest.mark.parametrize(
    "text",
    [
        "a: !!bool x", "a: !!int x", "a: !!float x", "a: !!timestamp x", "a: !!int 0b_",
        "a: 2020-13-45", "a: !!python/name:os.system ''", "a: !x 1", "a: !!set {b}",
        "? [1]\n: 2", "? {x: 1}\n: 2", "<<: {b: 1}", "a: 1\n...\n--- \nb: 2", "a: *b",
        "- a", "a", "a: [", "a: \0",
    ],
)  # fmt: skip
def test_what_a_card_cannot_mean_is_said_with_its_place(text: str) -> None:
    if text == "a: 1\n...\n--- \nb: 2":  # ends at the second line of dashes
        assert front_matter(card(text)) == {"a": 1}
        return
    with pytest.raises(BadCard, match=r"^the front matter .{10}"):
        front_matter(card(text))


_LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.dates().map(str)
)  # fmt: skip
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(st.dictionaries(st.text(), _VALUES, min_size=1))
def test_cards_say_what_was_written_into_them(values: dict[str, Any]) -> None:
    for text in (
        yaml.safe_dump(values, allow_unicode=True, width=1000),
        yaml.safe_dump(values, default_flow_style=True, default_style='"', width=1000),
    ):
        if any(line.rstrip() == "---" for line in text.splitlines()):
            continue
        if "<<" in values:  # in quotes it is an ordinary key
            text = yaml.safe_dump(values, default_style='"')
        by_others = yaml.safe_load("\n".join(text.splitlines()))
        assert front_matter(card(text.rstrip("\n"))) == plain(by_others)


@given(st.text(st.sampled_from("ab01:-?!&*[]{}<>|'\"\\#%@`,. \n\tudxe~.\ud83d\ude00"), max_size=60))
@settings(max_examples=400)
def test_no_text_breaks_the_reader_of_cards(text: str) -> None:
    try:
        found = front_matter(b"---\n" + text.encode("utf-8", "surrogatepass") + b"\n---\n")
    except BadCard as refused:
        found = str(refused)
    # This is the text for a bug in the parser.
    assert found != "the front matter cannot be read"
    json.dumps(found, allow_nan=False).encode()


@given(st.binary(max_size=60) | st.text().map(json.dumps).map(str.encode))
def test_no_json_breaks_its_reader(data: bytes) -> None:
    try:
        found = read_json(data)
    except ValueError:
        return
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()


def test_json_of_users_is_made_plain() -> None:
    odd = b'{"\\ud83d\\ude00": ["\\ud800", NaN, Infinity, -Infinity, 1e999, 1.5, %s]}' % (
        b"9" * 5000
    )
    assert read_json(odd) == {
        "\U0001f600": ["\ufffd", None, None, None, None, 1.5, "9" * 5000],
    }  # fmt: skip
    assert plain("\ud83d\ude00") == "\U0001f600"
    for levels in (MAX_NESTING + 1, 100_000):
        with pytest.raises(ValueError, match="deep"):
            read_json(b"[" * levels + b"]" * levels)
    assert math.isclose(read_json(b"0.1"), 0.1)


ODD_FILES = [
    ("README.md", card("a: !!bool x")),
    ("README.md", card('a: "\\ud83d\\ude00"\ntags: ["\\ud83d\\ude00", "\\udead"]')),
    ("README.md", card("a: 0x" + "f" * 5000)),
    ("README.md", card("tags: {a: b}\nlicense: [1]\nbase_model: {a: 1}\npipeline_tag: [1]")),
    ("README.md", card("base_model: \"\\ud800/x\"\nlanguage: [[1], .nan]\nlibrary_name: 5")),
    ("config.json", b'{"quantization_config":{"x":Infinity}}'),
    ("config.json", b'{"model_type":NaN}'),
    ("config.json", b'{"model_type":"\\ud800","architectures":["\\ud83d\\ude00"]}'),
    ("config.json", b'{"model_type":%s}' % (b"9" * 5000)),
    ("config.json", b"[" * 50_000),
    ("adapter_config.json", b'{"base_model_name_or_path":"\\ud800/x","r":NaN}'),
    ("model.safetensors.index.json", b'{"weight_map":{},"metadata":{"a":NaN,"b":"\\ud800"}}'),
]  # fmt: skip


@pytest.mark.parametrize(("path", "data"), ODD_FILES)
def test_an_odd_file_breaks_no_answer(hub: RunningHub, path: str, data: bytes) -> None:
    digest = sha256(data).hexdigest()[:8]
    name = f"admin/odd-{digest}"
    hub.create(name)
    # Through both APIs.
    hub.commit(name, {path: data})
    assert send_commit(hub, name, header(), small(path, data + b"\n")).status == 200
    for url in (
        f"/api/models/{name}",
        f"/api/models?search=odd-{digest}",
        f"/api/models?search=odd-{digest}&full=true",
        f"/api/models?search=odd-{digest}&expand=config&expand=tags&expand=cardData",
        f"/api/models/{name}/tree/main?expand=true",
        f"/v1/repositories/{name}/info",
    ):
        answer = hub.call("GET", url)
        assert answer.status == 200, (url, answer.body)
        json.loads(answer.body, parse_constant=pytest.fail)
    if path.endswith("index.json"):
        found = hub.call("GET", f"/api/models/{name}/safetensors-metadata/{path}").json()
        assert found["index"]["metadata"] == {"a": None, "b": "\ufffd"}


def test_a_shard_that_is_no_safetensors_is_refused(hub: RunningHub) -> None:
    name = "admin/odd-shard"
    hub.create(name)
    index = b'{"weight_map": {"a": "w.bin"}}'
    for shard in (b"", b"\1" + bytes(7) + b"x", b"no safetensors at all"):
        hub.commit(name, {"i.json": index, "w.bin": shard})
        answer = hub.call("GET", f"/api/models/{name}/safetensors-metadata/i.json")
        assert answer.status == 422, answer.body


def test_what_cannot_be_read_is_read_once(
    hub: RunningHub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.create("admin/odd-once")
    data = card("once: [" + "[]," * 300_000 + "]")
    hub.commit("admin/odd-once", {"README.md": data})
    with caplog.at_level(logging.WARNING, "deltahub.registry.cards.facts"):
        for _ in range(3):
            assert hub.call("GET", "/api/models?search=odd-once").status == 200
    (record,) = [one for one in caplog.records if sha256(data).hexdigest() in one.getMessage()]
    assert "256 KiB" in record.getMessage()


def test_a_commit_whose_words_are_odd_is_refused_or_made(hub: RunningHub) -> None:
    name = "admin/odd-commits"
    create_model(hub, name)
    for parent in (5, [1], {"a": 1}, True, 1.5):
        answer = send_commit(hub, name, header(parentCommit=parent), small("a", b"a"))
        assert error_of(answer) == (422, "invalid_request")
        assert '"parentCommit": COMMIT' in answer.headers["X-Error-Message"]
    content = base64.b64encode(b"x").decode()
    for summary in ("\ud83d\ude00", "\ud800", "a\0b", 5, ["x"]):
        line = ("file", {"path": "a", "content": content, "encoding": "base64"})
        answer = send_commit(hub, name, header(summary), line)  # type: ignore[arg-type]  # odd
        assert answer.status in (200, 422), (summary, answer.body)
    assert hub.call("GET", f"/api/models/{name}/commits/main").status == 200
