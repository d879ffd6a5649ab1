"""What became of a move is noted once, and one command puts all of it back."""

import pytest

from deltahub.registry.access import organizations, users
from deltahub.registry.adapters.kits import has_kit
from deltahub.registry.catalog.refs import create_ref
from deltahub.registry.catalog.repositories import (
    delete_repository,
    get_repository,
    move_repository,
)
from deltahub.registry.db.models import Repository, Revision, User
from deltahub.registry.db.tables.comparisons import AdapterKit
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import Conflict, RepositoryNotFound
from deltahub.registry.jobs import queue, requests
from deltahub.registry.reencode.withdraw import withdraw
from deltahub.registry.results.asked import retry
from deltahub.registry.upgrades import decisions
from deltahub.registry.upgrades.put_back import put_back
from deltahub.registry.upgrades.running import advance
from deltahub.registry.upgrades.shown import get_upgrade
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested
from support.registry.opened import caller, push
from support.registry.withdrawing import run_withdrawal
from support.upgrades.planned import (
    PATH,
    Bases,
    jobs_of,
    moves,
    publish,
    push_adapter,
    state_of,
    written,
)


@pytest.fixture
def upgrade(bases: Bases) -> int:
    """Of two adapters, which move."""
    for name in ("ann/one", "ann/two"):
        push_adapter(bases.reg, bases.ann, name, "ann/v1")
    found = written(bases.reg, bases.ann, bases.old, bases.new, "auto").upgrade_id
    assert found is not None
    assert advance(bases.reg) == 2
    return found


def states(bases: Bases, upgrade: int) -> dict[str, str]:
    return {name: each.state for name, each in moves(bases.reg, bases.ann, upgrade).items()}


def test_a_published_a_kept_and_a_failed_move(bases: Bases, upgrade: int) -> None:
    push_adapter(bases.reg, bases.ann, "ann/three", "ann/v1")
    written(bases.reg, bases.ann, bases.old, bases.new, "auto")
    advance(bases.reg)
    one, two, three = jobs_of(bases.reg, "transfer_adapter")
    publish(bases.reg, bases.ann, one)
    with bases.reg.db.write_beside() as session:
        queue.mark_running(session, two.id)
        result = {"published": False, "chosen": "freeze", "reasons": ["it would lose too much"]}
        queue.mark_done(session, two.id, result)
        queue.mark_running(session, three.id)
        queue.mark_failed(session, three.id, "job_failed", "the GPU is gone")
    assert advance(bases.reg) == 3
    assert advance(bases.reg) == 0
    found = moves(bases.reg, bases.ann, upgrade)
    assert found["ann/one"].result == "ann/one-v2"
    assert found["ann/one"].agreed == {"value": 0.9, "low": 0.8, "high": 0.95}
    assert (found["ann/two"].state, found["ann/two"].why) == ("kept", "it would lose too much")
    assert (found["ann/three"].state, found["ann/three"].why) == ("failed", "the GPU is gone")
    assert state_of(bases.reg, bases.ann, upgrade) == "done"


def test_a_failed_job_that_its_user_retries_counts_again(bases: Bases, upgrade: int) -> None:
    job = jobs_of(bases.reg, "transfer_adapter")[0]
    with bases.reg.db.write_beside() as session:
        queue.mark_running(session, job.id)
        queue.mark_failed(session, job.id, "job_failed", "the GPU is gone")
    advance(bases.reg)
    assert states(bases, upgrade)["ann/one"] == "failed"
    retry(bases.reg, bases.ann, job.id)
    advance(bases.reg)
    assert states(bases, upgrade)["ann/one"] == "queued"
    with bases.reg.db.write_beside() as session:
        queue.mark_running(session, job.id)
    assert states(bases, upgrade)["ann/one"] == "running"
    publish(bases.reg, bases.ann, job)
    advance(bases.reg)
    assert states(bases, upgrade)["ann/one"] == "published"


def test_put_back_deletes_what_was_made_and_stops_the_rest(bases: Bases, upgrade: int) -> None:
    first = jobs_of(bases.reg, "transfer_adapter")[0]
    name = publish(bases.reg, bases.ann, first)
    done = put_back(bases.reg, bases.ann, upgrade)
    assert (done.deleted, done.cancelled, done.kept) == ([name], ["ann/two"], [])
    assert states(bases, upgrade) == {"ann/one": "put_back", "ann/two": "put_back"}
    assert state_of(bases.reg, bases.ann, upgrade) == "put_back"
    with pytest.raises(RepositoryNotFound):
        get_repository(bases.reg, bases.ann, name)
    assert [job.state for job in jobs_of(bases.reg, "transfer_adapter")] == ["done", "cancelled"]
    again = put_back(bases.reg, bases.ann, upgrade)
    assert (again.deleted, again.cancelled, again.kept) == ([], [], [])
    assert advance(bases.reg) == 0


@pytest.mark.parametrize("change", ["commit", "tag", "branch"])
def test_a_result_that_somebody_changed_stays(bases: Bases, upgrade: int, change: str) -> None:
    name = publish(bases.reg, bases.ann, jobs_of(bases.reg, "transfer_adapter")[0])
    if change == "commit":
        push(bases.reg, bases.ann, name, {"README.md": b"# Ours\n"})
    else:
        create_ref(bases.reg, bases.ann, name, "branch" if change == "branch" else "tag",
                   "ours", "main")  # fmt: skip
    for _ in range(2):
        (kept,) = put_back(bases.reg, bases.ann, upgrade).kept
        assert (kept.adapter, kept.result) == ("ann/one", name)
        assert "somebody has changed it since" in kept.why
    assert get_repository(bases.reg, bases.ann, name).head is not None
    assert states(bases, upgrade) == {"ann/one": "published", "ann/two": "put_back"}
    assert "not put back" in str(moves(bases.reg, bases.ann, upgrade)["ann/one"].why)


def test_a_result_that_was_given_a_kit_stays(bases: Bases, upgrade: int) -> None:
    name = publish(bases.reg, bases.ann, jobs_of(bases.reg, "transfer_adapter")[0])
    with bases.reg.db.write() as session:
        row = session.query(Repository).filter_by(name=name.partition("/")[2]).one().id
        session.add(
            AdapterKit(
                id="1" * 32, repository_id=row, kit={}, adapter_sha256="0" * 64,
                discriminator_sha256="0" * 64, size=0,
            )
        )  # fmt: skip
    done = put_back(bases.reg, bases.ann, upgrade)
    assert (done.deleted, [each.result for each in done.kept]) == ([], [name])
    assert get_repository(bases.reg, bases.ann, name).head is not None
    with bases.reg.db.read() as session:
        assert has_kit(session, row)


def test_a_renamed_result_is_found_and_a_deleted_one_is_no_fault(
    bases: Bases, upgrade: int
) -> None:
    one, two = jobs_of(bases.reg, "transfer_adapter")
    first, second = (publish(bases.reg, bases.ann, job) for job in (one, two))
    advance(bases.reg)
    move_repository(bases.reg, bases.ann, first, "ann/other")
    delete_repository(bases.reg, bases.ann, second)
    # Somebody else's model with the name of one that was deleted is none of the upgrade's.
    push(bases.reg, bases.ann, second, {"README.md": b"# Another\n"})
    done = put_back(bases.reg, bases.ann, upgrade)
    assert (done.deleted, done.kept) == (["ann/other"], [])
    assert get_repository(bases.reg, bases.ann, second).head is not None
    assert set(states(bases, upgrade).values()) == {"put_back"}


def test_a_job_that_publishes_after_it_was_put_back_is_taken_back(
    bases: Bases, upgrade: int
) -> None:
    job = jobs_of(bases.reg, "transfer_adapter")[0]
    with bases.reg.db.write_beside() as session:
        queue.mark_running(session, job.id)
    assert put_back(bases.reg, bases.ann, upgrade).cancelled == ["ann/one", "ann/two"]
    assert requests.get_job(bases.reg, bases.ann, job.id).is_cancel_asked
    name = publish(bases.reg, bases.ann, job)  # it had passed its last step
    advance(bases.reg)
    assert states(bases, upgrade)["ann/one"] == "put_back"
    with pytest.raises(RepositoryNotFound):
        get_repository(bases.reg, bases.ann, name)


def test_a_late_result_is_taken_back_for_who_put_it_back(bases: Bases) -> None:
    """The approver may not delete it, and the administrator who put it back may."""
    organizations.create_organization(bases.reg, "team")
    organizations.add_member(bases.reg, "team", "bob", "write")
    organizations.add_member(bases.reg, "team", "ann", "admin")
    push_adapter(bases.reg, bases.bob, "team/tags", "ann/v1")
    found = written(bases.reg, bases.bob, bases.old, bases.new, "auto").upgrade_id
    assert found is not None
    advance(bases.reg)
    (job,) = jobs_of(bases.reg, "transfer_adapter")
    with bases.reg.db.write_beside() as session:
        queue.mark_running(session, job.id)
    put_back(bases.reg, bases.ann, found)
    name = publish(bases.reg, bases.bob, job)
    advance(bases.reg)
    assert states(bases, found) == {"team/tags": "put_back"}
    with pytest.raises(RepositoryNotFound):
        get_repository(bases.reg, bases.ann, name)


def test_a_stopped_job_that_its_user_retries_keeps_its_result(bases: Bases, upgrade: int) -> None:
    put_back(bases.reg, bases.ann, upgrade)
    job = jobs_of(bases.reg, "transfer_adapter", "cancelled")[0]
    retry(bases.reg, bases.ann, job.id)
    name = publish(bases.reg, bases.ann, job)
    advance(bases.reg)
    assert get_repository(bases.reg, bases.ann, name).head is not None
    assert states(bases, upgrade)["ann/one"] == "put_back"


def test_a_writer_puts_back_only_what_a_deletion_allows(bases: Bases) -> None:
    organizations.create_organization(bases.reg, "team")
    organizations.add_member(bases.reg, "team", "bob", "write")
    organizations.add_member(bases.reg, "team", "ann", "admin")
    push_adapter(bases.reg, bases.bob, "team/tags", "ann/v1")
    found = written(bases.reg, bases.bob, bases.old, bases.new, "auto").upgrade_id
    assert found is not None
    advance(bases.reg)
    (job,) = jobs_of(bases.reg, "transfer_adapter")
    publish(bases.reg, bases.bob, job)
    (kept,) = put_back(bases.reg, bases.bob, found).kept
    assert "needs the role admin" in kept.why
    assert put_back(bases.reg, bases.ann, found).deleted == ["team/tags-v2"]


def test_a_crash_after_the_job_was_asked_for_begins_no_second_one(
    bases: Bases, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_adapter(bases.reg, bases.ann, "ann/one", "ann/v1")
    found = written(bases.reg, bases.ann, bases.old, bases.new, "auto").upgrade_id
    assert found is not None

    class Killed(BaseException):
        pass

    def die(*_: object) -> int:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("deltahub.registry.upgrades.running._mark_begun", die)
        with pytest.raises(Killed):
            advance(bases.reg)
    assert states(bases, found) == {"ann/one": "approved"}
    advance(bases.reg)
    assert len(jobs_of(bases.reg, "transfer_adapter")) == 1
    assert states(bases, found) == {"ann/one": "queued"}
    info, _ = get_upgrade(bases.reg, bases.ann, found)
    assert (info.state, info.counts) == ("running", {"queued": 1})


def test_a_move_begins_with_the_names_of_today_and_a_free_name(bases: Bases) -> None:
    push_adapter(bases.reg, bases.ann, "ann/one", "ann/v1")
    found = written(bases.reg, bases.ann, bases.old, bases.new).upgrade_id
    assert found is not None
    for name in ("v1", "v2", "one"):
        move_repository(bases.reg, bases.ann, f"ann/{name}", f"ann/{name}-renamed")
    push(bases.reg, bases.ann, "ann/one-v2", {"README.md": b"# Taken\n"})
    decisions.approve(bases.reg, bases.ann, found)
    advance(bases.reg)
    (job,) = jobs_of(bases.reg, "transfer_adapter")
    given = job.payload["arguments"]
    assert given["name"] == "ann/one-v2-2"
    names = [given[key].partition("@")[0] for key in ("adapter", "base", "source_base")]
    assert names == ["ann/one-renamed", "ann/v2-renamed", "ann/v1-renamed"]


@pytest.mark.parametrize("gone", ["ann/one", "ann/v1", "ann/v2"])
def test_a_party_that_is_deleted_before_the_move_begins_fails_it(bases: Bases, gone: str) -> None:
    push_adapter(bases.reg, bases.ann, "ann/one", "ann/v1")
    found = written(bases.reg, bases.ann, bases.old, bases.new, "auto").upgrade_id
    assert found is not None
    delete_repository(bases.reg, bases.ann, gone)
    assert advance(bases.reg) == 1
    assert advance(bases.reg) == 0
    (move,) = moves(bases.reg, bases.ann, found).values()
    assert move.state == "failed"
    assert f"there is no repository {gone}" in str(move.why)


def test_a_user_who_was_deleted_lets_nothing_begin(bases: Bases) -> None:
    organizations.create_organization(bases.reg, "team")
    organizations.add_member(bases.reg, "team", "bob", "write")
    push_adapter(bases.reg, bases.bob, "team/tags", "ann/v1")
    found = written(bases.reg, bases.bob, bases.old, bases.new, "auto").upgrade_id
    assert found is not None
    with bases.reg.db.write() as session:
        session.delete(session.query(User).filter_by(name="bob").one())
    advance(bases.reg)
    admin = caller(bases.reg, "root", is_admin=True)
    (move,) = moves(bases.reg, admin, found).values()
    assert (move.state, move.why) == (
        "failed", "the user who approved it was deleted: approve it again",
    )  # fmt: skip
    assert users.list_users(bases.reg)
    decisions.approve(bases.reg, admin, found, ["team/tags"])
    assert advance(bases.reg) == 1


def needed_result(bases: Bases, upgrade: int) -> tuple[str, str]:
    """(a result that a model of bob's is a delta of, the job that is to delete it)"""
    job = jobs_of(bases.reg, "transfer_adapter")[0]
    name = publish(bases.reg, bases.ann, job)
    weights = push_ingested(bases.reg, bases.ann, name, {PATH: tiny.to_file(tiny.finetune(1e-2))})
    with bases.reg.db.write_beside() as session:
        commit = session.get_one(Revision, weights).commit
        row = session.get_one(Job, job.id)
        row.result = dict(row.result or {}) | {"revision": commit}
    tuned = {key: value * 1.0001 for key, value in tiny.finetune(1e-2).items()}
    push_ingested(bases.reg, bases.bob, "bob/child", {PATH: tiny.to_file(tuned)}, base=name)
    done = put_back(bases.reg, bases.ann, upgrade)
    (deletion,) = jobs_of(bases.reg, "withdraw")
    assert (done.deleted, [each.result for each in done.kept]) == ([], [name])
    assert deletion.id in done.kept[0].why
    move = moves(bases.reg, bases.ann, upgrade)["ann/one"]
    assert (move.state, move.why) == ("published", done.kept[0].why)
    return name, deletion.id


def test_a_result_that_others_need_is_put_back_once_it_is_deleted(
    bases: Bases, upgrade: int
) -> None:
    name, deletion = needed_result(bases, upgrade)
    put_back(bases.reg, bases.ann, upgrade)  # again: the same job
    run_withdrawal(bases.reg, deletion)
    with pytest.raises(RepositoryNotFound):
        get_repository(bases.reg, bases.ann, name)
    advance(bases.reg)
    move = moves(bases.reg, bases.ann, upgrade)["ann/one"]
    assert (move.state, move.why) == ("put_back", None)


def test_a_result_that_changes_before_its_job_deletes_it_stays(bases: Bases, upgrade: int) -> None:
    name, deletion = needed_result(bases, upgrade)
    push(bases.reg, bases.ann, name, {"README.md": b"# Ours\n"})
    with pytest.raises(Conflict, match="somebody has changed it since") as caught:
        run_withdrawal(bases.reg, deletion)
    assert get_repository(bases.reg, bases.ann, name).head is not None
    with bases.reg.db.write_beside() as session:
        queue.mark_failed(session, deletion, "conflict", str(caught.value))
    advance(bases.reg)
    move = moves(bases.reg, bases.ann, upgrade)["ann/one"]
    assert (move.state, move.result) == ("published", name)
    assert move.why == "not put back: somebody has changed it since"
    # Its owner may delete it nevertheless.
    asked = withdraw(bases.reg, bases.ann, name, "delete")
    if asked is not None:
        run_withdrawal(bases.reg, asked.job_id)
    with pytest.raises(RepositoryNotFound):
        get_repository(bases.reg, bases.ann, name)
