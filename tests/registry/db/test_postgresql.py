"""A hub on PostgreSQL: the most important operations. tests/postgresql has more."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from deltahub.registry import Registry
from deltahub.registry.catalog.lists.search import list_repositories, search
from deltahub.registry.db.models import Tensor, utc_now
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.maintenance import clock
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.reencode.recompress import apply_recompress, plan_recompress
from deltahub.server.app import create_app
from support.models import tiny_models as tiny
from support.registry.collecting import collect
from support.registry.ingested import push_ingested, read_file, run_replans, stored_tensors
from support.registry.opened import caller, opened_registry, push
from support.service.postgresql import postgresql_server

PATH = "model.safetensors"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgresql_server() as address:
        yield address


@pytest.fixture
def reg(url: str, tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path, database_url=url) as registry:
        yield registry


def test_a_hub_does_its_work(reg: Registry) -> None:
    ann = caller(reg, "ann")
    tuned = tiny.to_file(tiny.finetune(1e-5))
    first = push_ingested(reg, ann, "ann/tune", {PATH: tuned}, base="ann/base")
    base = push_ingested(reg, ann, "ann/base", {PATH: tiny.to_file(tiny.base())})
    assert run_replans(reg) > 0
    assert any(stored.bases for stored in stored_tensors(reg, first).values())
    assert read_file(reg, first, PATH) == tuned
    assert read_file(reg, base, PATH) == tiny.to_file(tiny.base())

    names = [item.name for item in list_repositories(reg, ann, search="TUN").items]
    assert names == ["ann/tune"]
    with reg.db.read() as session:
        found = search(session, ann, words=["bAs", "nn"]).items
        assert [item.name for item in found] == ["ann/base"]

    client = TestClient(create_app(reg), base_url="http://localhost")
    shown = client.get("/api/models/ann/tune?expand=usedStorage").json()
    assert shown["usedStorage"] == len(tuned)
    assert client.get("/api/models", params={"search": "a\0b"}).status_code in (200, 400, 422)
    push(reg, ann, "ann/tree", dict.fromkeys(("B", "a-", "a/b", "a0", "é", "~"), b"1"))
    tree, seen = "/api/models/ann/tree/tree/main?limit=2&recursive=true", []
    while tree:
        page = client.get(tree)
        seen += [item["path"] for item in page.json()]
        tree = page.links.get("next", {}).get("url", "")
    assert seen == ["B", "a-", "a", "a/b", "a0", "~", "é"]
    refused = client.get("/api/models/ann/tree/tree/main?cursor=%00")
    assert refused.status_code == 422
    asked = {"paths": ["\0", "a"]}
    shown = client.post("/api/models/ann/tree/paths-info/main", data=asked).json()
    assert [item["path"] for item in shown] == ["a"]

    plan = plan_recompress(reg, FileReader(reg))
    json.dumps(plan.as_dict())
    apply_recompress(reg, FileReader(reg), plan)
    json.dumps(plan_gc(reg, lease_s=0, grace_s=0).as_dict())
    collect(reg)
    stages: list[str] = []
    assert list(fsck(reg, read_data=True, progress=stages.append)) == []
    assert "pg_amcheck" in stages[0], "fsck says what it does not check"
    with Registry.open_to_read(reg.settings) as reading:
        assert list(fsck(reading)) == []
        assert plan_gc(reading).doubts == ()
    with reg.db.write() as session:
        session.execute(update(Tensor).values(created_at=utc_now() + timedelta(days=3650)))
    assert "--clock-was-ahead" in plan_gc(reg).doubts[0]
    assert clock.count_ahead(reg) == clock.set_to_now(reg) > 0
    assert plan_gc(reg).doubts == ()
    assert read_file(reg, first, PATH) == tuned
