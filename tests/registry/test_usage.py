"""What a repository stores counts all that its files need, also what no revision names any more."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import Frame
from deltahub.registry.quotas.usage import measure, usage_of_repository
from deltahub.registry.retention.prune import Rule, prune
from support.models import tiny_models
from support.registry.collecting import collect, is_clean
from support.registry.commits import NAME, revision
from support.registry.histories import committed
from support.registry.opened import caller, opened_registry

WEIGHTS = "model.safetensors"
TUNE, LATER = "alice/tune", "alice/later"


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def run(reg: Registry, alice: Caller, n: int = 5) -> list[str]:
    """The commits of a run of checkpoints, each stored as the step from the one before."""
    files = [tiny_models.to_file(each) for each in tiny_models.checkpoints(n)]
    return [committed(reg, alice, {WEIGHTS: file}) for file in files]


def stored(reg: Registry, name: str, *, again: bool = False) -> int:
    """Bytes of the repository as last measured, or as measured again."""
    row_id = revision(reg, name).repository_id
    if again:
        with reg.db.write() as session:
            measure(session, row_id)
    with reg.db.read() as session:
        return usage_of_repository(session, row_id).stored_bytes


def in_packs(reg: Registry) -> int:
    with reg.db.read() as session:
        return session.scalar(select(func.sum(Frame.length))) or 0


def test_a_pruned_run_counts_the_weights_that_its_steps_need(reg: Registry, alice: Caller) -> None:
    run(reg, alice)
    whole = stored(reg, NAME, again=True)
    assert whole == in_packs(reg)
    prune(reg, alice, NAME, Rule())
    collect(reg, revision_grace_s=0)
    assert 0 < stored(reg, NAME) < whole
    assert stored(reg, NAME) == in_packs(reg)
    assert is_clean(reg)


def test_weights_that_several_need_count_with_the_oldest(reg: Registry, alice: Caller) -> None:
    made = run(reg, alice)
    tune = tiny_models.checkpoints(7)
    committed(reg, alice, {WEIGHTS: tiny_models.to_file(tune[5])}, TUNE, base=f"{NAME}@{made[3]}")
    committed(reg, alice, {WEIGHTS: tiny_models.to_file(tune[6])}, LATER, base=f"{NAME}@{made[1]}")
    before = [stored(reg, name, again=True) for name in (NAME, TUNE, LATER)]
    assert sum(before) == in_packs(reg)
    # Nothing of the run is named any more, but both fine-tunes need some of it.
    committed(reg, alice, {WEIGHTS: b"something else"})
    prune(reg, alice, NAME, Rule())
    collect(reg, revision_grace_s=0)
    after = [stored(reg, name) for name in (NAME, TUNE, LATER)]
    assert sum(after) == in_packs(reg)
    assert after[1] > before[1]


def test_private_models_pay_for_their_base_when_it_is_deleted(reg: Registry, alice: Caller) -> None:
    base, tune = (tiny_models.to_file(each) for each in tiny_models.checkpoints(2))
    committed(reg, alice, {WEIGHTS: base}, private=True)
    committed(reg, alice, {WEIGHTS: tune}, TUNE, base=NAME, private=True)
    before = stored(reg, TUNE, again=True)
    delete_repository(reg, alice, NAME)
    collect(reg)
    assert before < stored(reg, TUNE) == in_packs(reg)
