"""A collection looks at what changed, and finds all that one finds that looks at everything."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import func, select

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.refs import create_ref
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.tables.suspects import Suspect
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import RegistryError
from deltahub.registry.ingest.make_public import make_public
from deltahub.registry.maintenance.gc import settle as settling
from deltahub.registry.maintenance.gc.plan import Plan, plan_gc
from deltahub.registry.maintenance.gc.settle import settle, suspect_everything
from deltahub.registry.retention.drop import delete_ref
from deltahub.registry.retention.rewrite import delete_files, squash
from support.models import tiny_models as tiny
from support.registry.collecting import collect, is_clean
from support.registry.ingested import push_ingested, run_replans
from support.registry.old_schema import make_0007
from support.registry.opened import caller, opened_registry, push, sha256_of

BASE = tiny.to_file(tiny.base())
TUNES = [tiny.to_file(tiny.finetune(scale)) for scale in (1e-5, 2e-5, 3e-5, 4e-5)]
PATH = "model.safetensors"


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def n_suspects(reg: Registry) -> int:
    with reg.db.read() as session:
        return session.scalar(select(func.count()).select_from(Suspect)) or 0


def plan(reg: Registry) -> Plan:
    return plan_gc(reg, lease_s=0, grace_s=0, revision_grace_s=0)


def garbage(found: Plan) -> tuple[object, ...]:
    return (
        found.revisions, found.files, found.tensors, found.uploads, found.condemn, found.repack,
        found.delete, found.sparse, found.anchors,
        [(each.what, each.count, each.size_bytes) for each in found.waiting],
    )  # fmt: skip


def test_where_all_is_needed_nothing_is_suspect(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE, "config.json": b"{}"})
    push_ingested(reg, ann, "ann/tune", {PATH: TUNES[0]}, base="ann/base")
    run_replans(reg)
    assert n_suspects(reg) > 0
    collect(reg)
    assert n_suspects(reg) == 0
    push(reg, ann, "ann/tune", {"README.md": b"# tune"})
    assert n_suspects(reg) == 1


@pytest.mark.parametrize("seed", range(6))
def test_it_finds_what_a_look_at_everything_finds(
    reg: Registry, ann: Caller, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "_PAGE", 7)
    draw = Random(seed)
    names = [f"ann/m{n}" for n in range(3)]
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    for _ in range(25):
        name, act = draw.choice(names), draw.randrange(9)
        try:
            if act <= 2:
                files = {PATH: draw.choice(TUNES), "x.txt": b"%d" % draw.randrange(4)}
                base = draw.choice(["ann/base", None])
                push_ingested(reg, ann, name, files, base=base, private=draw.random() < 0.2)
            elif act == 3:
                push(reg, ann, name, {f"{draw.randrange(3)}.txt": b"%d" % draw.randrange(99)})
            elif act == 4:
                create_ref(reg, ann, name, "branch", "side", "main")
                push(reg, ann, name, {PATH: draw.choice(TUNES)}, ref="side")
            elif act == 5:
                delete_ref(reg, ann, name, "branch", "side")
            elif act == 6:
                squash(reg, ann, name, "main", "one")
            elif act == 7:
                draw.choice((_delete, _forget, _publish))(reg, ann, name)
            else:
                run_replans(reg)
                collect(reg, revision_grace_s=draw.choice([0, None]))
        except RegistryError:
            continue  # there is no such repository or branch at the moment
        if draw.random() < 0.3:
            settle(reg)
    before = garbage(plan(reg))
    suspect_everything(reg)
    assert garbage(plan(reg)) == before
    settle(reg)
    assert garbage(plan(reg)) == before
    collect(reg, revision_grace_s=0)
    suspect_everything(reg)
    assert plan(reg).files == plan(reg).tensors == ()
    assert is_clean(reg)


def _delete(reg: Registry, ann: Caller, name: str) -> None:
    delete_repository(reg, ann, name)


def _forget(reg: Registry, ann: Caller, name: str) -> None:
    delete_files(reg, ann, name, [sha256_of(TUNES[0])])


def _publish(reg: Registry, ann: Caller, name: str) -> None:
    make_public(reg, FileReader(reg), ann, name)


def test_what_loses_a_reference_while_it_is_settled_stays_suspect(
    reg: Registry, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_ingested(reg, ann, "ann/m", {"a.txt": b"a"})
    unlisted = settling._unlisted

    def delete_first(*given: object) -> object:
        found = unlisted(*given)  # type: ignore[arg-type]
        monkeypatch.setattr(settling, "_STILL", (unlisted, *settling._STILL[1:]))
        delete_repository(reg, ann, "ann/m")
        return found

    monkeypatch.setattr(settling, "_STILL", (delete_first, *settling._STILL[1:]))
    settle(reg)
    assert len(plan(reg).files) == 1


def test_a_hub_of_the_release_before_has_everything_looked_at(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        push_ingested(reg, ann, "ann/m", {PATH: BASE, "a.txt": b"a"})
        settle(reg)
        delete_repository(reg, ann, "ann/m")
        found = garbage(plan(reg))
    make_0007(tmp_path)
    with opened_registry(tmp_path) as reg:
        assert garbage(plan(reg)) == found
        collect(reg)
        assert n_suspects(reg) == 0
