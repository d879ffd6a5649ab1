"""A hub of version 0010c that is upgraded finds its models as if it had been new all along."""

import json
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import create_engine, select, text

from deltahub.registry import Registry
from deltahub.registry.cards.describe import describe_marked
from deltahub.registry.db.models import Repository
from deltahub.registry.db.tables.lists import ModelTag
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.quotas.usage import measure
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested
from support.registry.old_schema import MORE_LISTS
from support.registry.opened import caller, opened_registry, push

MODEL = "model.safetensors"
# A key that is there already, because somebody gave it to a card as a tag.
_OF_A_CARD = """
INSERT INTO model_tags (tag, is_private, namespace_id, repository_id)
    SELECT '#role:base', is_private, namespace_id, id FROM repositories WHERE name = 'base'
"""


def check_upgrade(folder: Path, **settings: Any) -> None:
    with opened_registry(folder, **settings) as reg:
        _push_family(reg)
        before, url = _lists(reg), reg.db.url
    assert {"#role:base", "#role:finetune", "#role:adapter", "#role:merge"} <= set(before[0])
    assert {"#dtype:F32", "#dtype:F16"} <= set(before[0])
    assert any(saved for _, _, saved in before[1])
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in MORE_LISTS:
            connection.execute(text(statement))
        connection.execute(text(_OF_A_CARD))
    engine.dispose()
    with opened_registry(folder, **settings) as reg:
        assert _lists(reg) == before


def _push_family(reg: Registry) -> None:
    ann = caller(reg, "ann")
    base = tiny.base()
    push_ingested(reg, ann, "ann/base", {MODEL: tiny.to_file(base)})
    tuned = tiny.to_file(tiny.task(0))
    push_ingested(reg, ann, "ann/declared", {MODEL: tuned}, base="ann/base")
    card = b"---\nbase_model: [ann/base, ann/declared]\nbase_model_relation: merge\n---\n"
    half = tiny.to_file(tiny.cast(base, torch.float16))
    push_ingested(reg, ann, "ann/merged", {MODEL: half, "README.md": card})
    config = json.dumps({"base_model_name_or_path": "ann/base"}).encode()
    push(reg, ann, "ann/lora", {"adapter_config.json": config})
    push(
        reg,
        ann,
        "ann/text",
        {"README.md": b'---\nbase_model: ann/base\ntags: ["a\\0b"]\n---\n'},
    )
    with reg.db.write() as session:
        for row_id in session.scalars(select(Repository.id)).all():
            measure(session, row_id)
    assert describe_marked(reg, FileReader(reg), 0, 100) is None


def _lists(reg: Registry) -> tuple[list[str], list[tuple[Any, ...]]]:
    with reg.db.read() as session:
        tags = session.scalars(select(ModelTag.tag).order_by(ModelTag.repository_id, ModelTag.tag))
        columns = select(Repository.name, Repository.logical_bytes, Repository.saved_bytes)
        sizes = [(name, *more) for name, *more in session.execute(columns.order_by(Repository.id))]
        return sorted(tags), sizes
