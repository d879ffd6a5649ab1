"""Other models are stored without a base before the base becomes private or is deleted."""

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.repositories import get_repository
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import RepositoryNotFound
from deltahub.registry.ingest.make_public import make_public
from deltahub.registry.jobs import queue
from deltahub.registry.jobs.progress import Progress
from deltahub.registry.reencode.withdraw import Change, WithdrawJob, withdraw
from support.registry.collecting import age_everything, collect, is_clean
from support.registry.ingested import push_ingested, read_file, run_replans, stored_tensors
from support.registry.withdrawing import (
    BASE,
    CHANGES,
    OUTSIDE,
    PATH,
    Models,
    check_files,
    needs_base,
    run_withdrawal,
    tune,
    withdraw_now,
)


@pytest.mark.parametrize("change", CHANGES)
def test_everybody_outside_is_stored_without_the_base_first(
    reg: Registry, ann: Caller, bob: Caller, models: Models, change: Change
) -> None:
    asked = withdraw(reg, ann, "ann/base", change)
    assert asked is not None
    assert asked.models == 2  # ann may not read bob/hidden; bob/again is a delta of bob/tuned alone
    assert not get_repository(reg, None, "ann/base").is_private
    run_withdrawal(reg, asked.job_id)
    for who in (bob, None):
        with pytest.raises(RepositoryNotFound):
            get_repository(reg, who, "ann/base")
    assert not any(needs_base(reg, models, name) for name in OUTSIDE)
    assert needs_base(reg, models, "ann/hidden")  # only ann's namespace may read it
    check_files(reg, models)
    run_replans(reg)
    assert not any(needs_base(reg, models, name) for name in OUTSIDE)
    age_everything(reg, days=30)
    collect(reg)
    check_files(reg, models)
    if change == "private":
        assert read_file(reg, models.base, PATH) == BASE


def test_others_stay_deltas_of_each_other(reg: Registry, ann: Caller, models: Models) -> None:
    """Nobody has to store every fine-tune in full because one base leaves."""
    withdraw_now(reg, ann, "ann/base", "private")
    depths = [
        stored.depth
        for name in OUTSIDE
        for stored in stored_tensors(reg, models.tunes[name]).values()
    ]
    assert max(depths) > 0


def test_a_model_without_dependents_changes_at_once(
    reg: Registry, ann: Caller, bob: Caller
) -> None:
    push_ingested(reg, ann, "ann/alone", {PATH: BASE})
    push_ingested(reg, ann, "ann/mine", {PATH: tune(1e-5)}, base="ann/alone", private=True)
    assert withdraw(reg, ann, "ann/alone", "private") is None
    assert withdraw(reg, ann, "ann/alone", "private") is None
    assert withdraw(reg, ann, "ann/alone", "delete") is None
    with pytest.raises(RepositoryNotFound):
        withdraw(reg, ann, "ann/alone", "delete")


def test_a_base_that_another_public_model_holds_too_needs_nothing(
    reg: Registry, ann: Caller, bob: Caller, models: Models
) -> None:
    push_ingested(reg, bob, "bob/copy", {PATH: BASE})
    assert withdraw(reg, ann, "ann/base", "delete") is None
    assert needs_base(reg, models, "bob/tuned")
    # The copy was the last one.
    assert withdraw_now(reg, bob, "bob/copy", "private") is not None
    assert not any(needs_base(reg, models, name) for name in ("ann/tuned", "bob/tuned"))
    assert needs_base(reg, models, "bob/hidden")
    check_files(reg, models)


def test_a_private_copy_in_a_namespace_serves_the_private_models_there(
    reg: Registry, ann: Caller, bob: Caller, models: Models
) -> None:
    push_ingested(reg, bob, "bob/copy", {PATH: BASE}, private=True)
    asked = withdraw_now(reg, ann, "ann/base", "private")
    assert asked is not None
    assert asked.models == 2
    assert needs_base(reg, models, "bob/hidden")
    assert not needs_base(reg, models, "bob/tuned")


@pytest.mark.parametrize("change", CHANGES)
def test_an_earlier_revision_does_not_leave_through_a_later_one_that_is_public_elsewhere(
    reg: Registry, ann: Caller, bob: Caller, change: Change
) -> None:
    first = push_ingested(reg, ann, "ann/base", {PATH: BASE})
    later = push_ingested(reg, ann, "ann/base", {PATH: tune(1e-5)})
    copied = push_ingested(reg, bob, "bob/copy", {PATH: tune(1e-5)})
    made = Models(
        first,
        frozenset(s.id for s in stored_tensors(reg, first).values()),
        {"ann/tuned": later, "bob/copy": copied},
    )
    assert needs_base(reg, made, "bob/copy")
    withdraw_now(reg, ann, "ann/base", change)
    assert not needs_base(reg, made, "bob/copy")
    assert read_file(reg, copied, PATH) == tune(1e-5)
    assert is_clean(reg)


@pytest.mark.parametrize("change", CHANGES)
def test_a_delta_of_a_delta_that_nobody_outside_may_read_counts(
    reg: Registry, ann: Caller, bob: Caller, change: Change
) -> None:
    """bob pushes bytes that the hub has already, as a delta of a delta of the base."""
    base = push_ingested(reg, ann, "ann/base", {PATH: BASE})
    push_ingested(reg, ann, "ann/first", {PATH: tune(2e-5)}, base="ann/base")
    push_ingested(reg, ann, "ann/second", {PATH: tune(3e-5)}, base="ann/first")
    assert withdraw(reg, ann, "ann/second", "private") is None
    assert withdraw(reg, ann, "ann/first", "private") is None
    pushed = push_ingested(reg, bob, "bob/pushed", {PATH: tune(3e-5)})
    rows = frozenset(stored.id for stored in stored_tensors(reg, base).values())
    made = Models(base, rows, {"bob/pushed": pushed})
    assert max(stored.depth for stored in stored_tensors(reg, pushed).values()) == 2
    assert needs_base(reg, made, "bob/pushed")
    assert withdraw_now(reg, ann, "ann/base", change) is not None
    assert not needs_base(reg, made, "bob/pushed")
    assert read_file(reg, pushed, PATH) == tune(3e-5)
    assert is_clean(reg)


def test_only_models_that_the_caller_may_read_are_counted(
    reg: Registry, ann: Caller, bob: Caller
) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    push_ingested(reg, bob, "bob/hidden", {PATH: tune(1e-5)}, base="ann/base", private=True)
    asked = withdraw(reg, ann, "ann/base", "private")
    assert asked is not None
    assert asked.models == 0
    seen: list[tuple[str, int, int]] = []
    with reg.db.write() as session:
        assert queue.mark_running(session, asked.job_id)
    work = WithdrawJob(reg, FileReader(reg), asked.job_id, "private", "write")
    while not work.step(Progress(lambda *line: seen.append(line), lambda: None)).is_last:
        pass
    assert seen
    assert {total for _, _, total in seen} == {0}


def test_a_public_model_that_was_private_meanwhile_is_no_exception(
    reg: Registry, ann: Caller, bob: Caller, models: Models
) -> None:
    """Its tensors are public data again, and the base may leave after that."""
    withdraw_now(reg, bob, "bob/tuned", "private")
    make_public(reg, FileReader(reg), bob, "bob/tuned")
    assert needs_base(reg, models, "bob/tuned")
    withdraw_now(reg, ann, "ann/base", "private")
    assert not needs_base(reg, models, "bob/tuned")
    check_files(reg, models)
