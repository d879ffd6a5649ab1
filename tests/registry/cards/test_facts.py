"""The facts of revisions: what files say, the rows that keep it, and hubs that lack the rows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from deltahub.registry import Registry
from deltahub.registry.cards.describe import describe, describe_commit, describe_marked, load_facts
from deltahub.registry.cards.facts import Facts, find_files, read_facts, shown_tags
from deltahub.registry.cards.spent import Spent
from deltahub.registry.cards.tasks import task_of
from deltahub.registry.catalog.lists.model_tags import UNKNOWN
from deltahub.registry.db.models import File, Revision
from deltahub.registry.db.tables.lists import ModelTag, RevisionFacts
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.server.app import create_app
from deltahub.server.settings import ServerSettings
from support.registry.commits import revision
from support.registry.opened import caller, opened_registry, push


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


def head(reg: Registry, name: str, files: dict[str, bytes]) -> Revision:
    """The head of a model with these files, which lacks a row of facts."""
    push(reg, caller(reg, name.partition("/")[0]), name, files)
    return revision(reg, name)


def read(reg: Registry, found: Revision, **limits: int) -> Facts:
    with reg.db.read() as session:
        files = find_files(session, found, Spent(1 << 40, 1 << 40))
    facts, is_whole = read_facts(FileReader(reg), files, Spent(1 << 40, 1 << 40), **limits)
    assert is_whole
    return facts


def row(reg: Registry, found: Revision) -> Facts | None:
    with reg.db.read() as session:
        return load_facts(session, [found.id], with_files=True).get(found.id)


def marked(reg: Registry) -> list[int]:
    with reg.db.read() as session:
        return list(session.scalars(select(ModelTag.repository_id).where(ModelTag.tag == UNKNOWN)))


def header_of(n_tensors: int) -> bytes:
    tensors = {
        f"t{i:03}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
        for i in range(n_tensors)
    }
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text + bytes(n_tensors)


def test_parameters_in_too_many_bytes_of_headers_are_not_counted(reg: Registry) -> None:
    shards = {
        f"model-{number:05}-of-00002.safetensors": header_of(10 + number) for number in range(2)
    }
    found = head(reg, "ann/shards", shards)
    assert read(reg, found).parameters == {"U8": 21}
    n_bytes = sum(map(len, shards.values())) - 21 - 16
    assert read(reg, found, max_counted_bytes=n_bytes).parameters == {"U8": 21}
    assert read(reg, found, max_counted_bytes=n_bytes - 1).parameters is None


def test_file_names_tell_the_formats_of_a_model(reg: Registry) -> None:
    names = [
        "pytorch_model.bin", "training_args.bin", "onnx/model.onnx", "m.Q4.gguf", "tf_model.h5",
        "flax_model.msgpack", "x.tflite", "readme.gguf.txt",
    ]  # fmt: skip
    facts = read(reg, head(reg, "ann/formats", dict.fromkeys(names, b"x")))
    assert facts.tags == ["gguf", "pytorch", "onnx", "tf", "jax", "tflite"]
    assert (facts.n_files, facts.size_bytes, facts.relation) == (
        len(names),
        len(names),
        "quantized",
    )
    assert read(reg, head(reg, "ann/args", {"training_args.bin": b"x"})).tags == []


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "text-generation"),
        ({"architectures": ["GPT2LMHeadModel"]}, "text-generation"),
        ({"architectures": ["BertForMaskedLM"]}, "fill-mask"),
        ({"architectures": ["BertModel"]}, "feature-extraction"),
        (
            {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"},
            "text2text-generation",
        ),
        (
            {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"},
            "automatic-speech-recognition",
        ),
        (
            {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}},
            "image-text-to-text",
        ),
        ({"architectures": ["XForConditionalGeneration"]}, None),
        ({"architectures": ["Odd"]}, None),
        ({"architectures": [5]}, None),
        ({"architectures": "LlamaForCausalLM"}, None),
        ({}, None),
    ],
)
def test_an_architecture_tells_the_task(config: dict[str, Any], task: str | None) -> None:
    assert task_of(config) == task


def test_a_card_names_its_task_itself(reg: Registry) -> None:
    config = {"config.json": b'{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}'}
    facts = read(reg, head(reg, "ann/silent", config))
    assert (facts.library, facts.pipeline) == ("transformers", "text-generation")
    assert facts.tags == ["transformers", "llama", "text-generation"]
    card = {"README.md": b"---\npipeline_tag: fill-mask\n---\n"}
    assert read(reg, head(reg, "ann/said", config | card)).pipeline == "fill-mask"


def test_a_row_keeps_what_the_files_say(reg: Registry) -> None:
    card = b"---\ntags: [mine]\nlicense: mit\nbase_model: [org/a, org/b]\nextra: {x: 1}\n---\n"
    adapter = b'{"base_model_name_or_path": "org/a"}'
    files = {"README.md": card, "adapter_config.json": adapter, "model.safetensors": header_of(3)}
    found = head(reg, "ann/kept", files)
    assert row(reg, found) is None
    said = read(reg, found)
    assert describe(reg, FileReader(reg), found.id)
    assert row(reg, found) == said
    with reg.db.read() as session:
        without = load_facts(session, [found.id], with_files=False)[found.id]
    assert (without.card, without.config, without.tags) == (None, None, said.tags)
    assert shown_tags(said, None, ["org/m"])[0] == [
        "peft", "safetensors", "mine", "license:mit", "base_model:org/a", "base_model:org/b",
        "base_model:adapter:org/a", "base_model:adapter:org/b", "base_model:measured:org/m",
    ]  # fmt: skip


def test_heads_without_facts_are_found_by_every_filter_until_they_have_them(reg: Registry) -> None:
    card = b"---\ntags: [mine]\n---\n"
    for number in range(3):
        head(reg, f"ann/m{number}", {"README.md": card if number else b"# no tag"})
    client = TestClient(create_app(reg), base_url="http://localhost")

    def tagged() -> list[str]:
        return [one["id"] for one in client.get("/api/models?filter=mine").json()]

    assert len(marked(reg)) == 3
    assert tagged() == ["ann/m2", "ann/m1"]
    after = describe_marked(reg, FileReader(reg), 0, 2)
    assert after is not None
    assert (tagged(), len(marked(reg))) == (["ann/m2", "ann/m1"], 1)
    assert describe_marked(reg, FileReader(reg), after, 2) is None
    assert (tagged(), marked(reg)) == (["ann/m2", "ann/m1"], [])


def test_facts_of_a_file_that_cannot_be_read_now_are_written_later(reg: Registry) -> None:
    found = head(reg, "ann/lost", {"README.md": b"---\ntags: [mine]\n---\n"})
    with reg.db.write() as session:
        (landing,) = session.scalars(select(File.landing_id))
        session.execute(update(File).values(landing_id=None))  # as of a recipe that is not proved
    assert not describe(reg, FileReader(reg), found.id)
    assert (row(reg, found), len(marked(reg))) == (None, 1)
    with reg.db.write() as session:
        session.execute(update(File).values(landing_id=landing))
    assert describe(reg, FileReader(reg), found.id)
    assert (row(reg, found) is not None, marked(reg)) == (True, [])


def test_a_commit_does_not_wait_for_the_headers_of_many_shards(reg: Registry) -> None:
    shards = {f"model-{n:05}-of-00017.safetensors": header_of(1 + n) for n in range(17)}
    found = head(reg, "ann/shards", shards)
    describe_commit(reg, FileReader(reg), "ann/shards", found.commit)
    assert (row(reg, found), len(marked(reg))) == (None, 1)
    assert describe_marked(reg, FileReader(reg), 0, 10) is None
    facts = row(reg, found)
    assert facts is not None
    assert facts.parameters == {"U8": sum(range(1, 18))}
    few = head(reg, "ann/few", {"README.md": b"1"})
    describe_commit(reg, FileReader(reg), "ann/few", few.commit)
    assert row(reg, few) is not None
    describe_commit(reg, FileReader(reg), "ann/gone", few.commit)


def test_a_page_ends_after_the_cards_that_it_had_to_read(reg: Registry) -> None:
    names = [f"ann/m{number}" for number in range(5)]
    for number, name in enumerate(names):
        head(reg, name, {"README.md": b"---\ntags: [mine]\n---\n" + b"%d" % number * 45_000})
    app = create_app(reg, ServerSettings(page_bytes=100_000, page_entries=6000))
    client = TestClient(app, base_url="http://localhost")

    def pages() -> list[list[str]]:
        found, url = [], "/api/models?author=ann&filter=mine"
        while url:
            answer = client.get(url)
            found.append([one["id"] for one in answer.json()])
            url = answer.links.get("next", {}).get("url", "")
        return found

    found = pages()
    assert [len(page) for page in found] == [3, 2]
    assert [name for page in found for name in page] == names[::-1]
    # What was read once is known.
    assert [len(page) for page in pages()] == [5]
    # With rows nothing is read.
    assert describe_marked(reg, FileReader(reg), 0, 10) is None
    with reg.db.read() as session:
        assert len(list(session.scalars(select(RevisionFacts)))) == 5
    assert [len(page) for page in pages()] == [5]


def test_a_branch_leaves_the_keys_of_main_alone(reg: Registry) -> None:
    ann = caller(reg, "ann")
    first = head(reg, "ann/m", {"README.md": b"---\ntags: [first]\n---\n"})
    describe(reg, FileReader(reg), first.id)
    push(
        reg,
        ann,
        "ann/m",
        {"README.md": b"---\ntags: [other]\n---\n"},
        ref="side",
        expected_parent=first.commit,
    )
    side = revision(reg, "ann/m", "side")
    describe(reg, FileReader(reg), side.id)
    with reg.db.read() as session:
        assert set(session.scalars(select(ModelTag.tag))) == {"first", "#role:base"}
    push(reg, ann, "ann/m", {"README.md": b"---\ntags: [second]\n---\n"})
    with reg.db.read() as session:
        assert set(session.scalars(select(ModelTag.tag))) == {"first", "#role:base", UNKNOWN}
    describe(reg, FileReader(reg), revision(reg, "ann/m").id)
    with reg.db.read() as session:
        assert set(session.scalars(select(ModelTag.tag))) == {"second", "#role:base"}
