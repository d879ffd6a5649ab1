"""What a report says of the bases of a run of checkpoints, and of revisions that are gone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.reports.revision import RevisionReport, report_revision
from deltahub.registry.retention.prune import Rule, prune
from support.models import tiny_models
from support.registry.collecting import collect
from support.registry.commits import NAME
from support.registry.histories import committed
from support.registry.opened import caller, opened_registry

WEIGHTS, TUNE = "model.safetensors", "alice/tune"


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def report(reg: Registry, who: Caller, name: str, *, is_brief: bool = False) -> RevisionReport:
    return report_revision(reg, FileReader(reg), who, name, is_brief=is_brief)


def test_steps_of_a_run_are_differences_from_the_same_repository(
    reg: Registry, alice: Caller
) -> None:
    files = [tiny_models.to_file(each) for each in tiny_models.checkpoints(4)]
    first, second, third = [committed(reg, alice, {WEIGHTS: file}) for file in files[:3]]
    found = report(reg, alice, NAME)
    assert (found.base.measured, found.base.is_own_history) == ((), True)
    assert found.totals.base > 0
    short = report(reg, alice, NAME, is_brief=True)
    assert (short.totals, short.base) == (found.totals, found.base)
    assert (len(found.files[0].tensors) > 0, short.files[0].tensors) == (True, [])

    committed(reg, alice, {WEIGHTS: files[3]}, TUNE, base=f"{NAME}@{second[:12]}")
    before = report(reg, alice, TUNE).base
    assert (before.commit, before.is_gone, before.is_own_history) == (second, False, False)
    prune(reg, alice, NAME, Rule())
    after = report(reg, alice, TUNE).base
    assert (after.declared, after.commit) == (f"{NAME}@{second[:12]}", third)
    assert after.is_gone
    collect(reg, revision_grace_s=0)
    kept = report(reg, alice, NAME)
    assert first != third
    assert (kept.totals.base > 0, kept.base.is_own_history) == (True, False)
