"""Pruning: what a rule keeps stays as it was, the rest goes; rules work by themselves."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from deltahub.registry import Caller, Registry
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.history import ancestors
from deltahub.registry.catalog.refs import create_ref
from deltahub.registry.commands.maintenance import plan_lines
from deltahub.registry.db.models import Revision, utc_now
from deltahub.registry.errors import Forbidden, InvalidRequest
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.retention.prune import Rule, prune
from deltahub.registry.retention.rules import Due, apply_rule, get_rule, set_rule, tidy
from deltahub.registry.retention.take_back import take_back
from support.registry.collecting import collect, count, is_clean
from support.registry.commits import NAME, files, revision
from support.registry.histories import committed, ingest_all, read
from support.registry.opened import caller, opened_registry, push


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as reg:
        yield reg


@pytest.fixture
def alice(reg: Registry) -> Caller:
    return caller(reg, "alice")


def checkpoints(reg: Registry, alice: Caller, n: int, ref: str = "main") -> list[str]:
    return [committed(reg, alice, {"w": b"%s %d" % (ref.encode(), i)}, ref=ref) for i in range(n)]


def history(reg: Registry, rev: str = "main") -> list[str]:
    with reg.db.read() as session:
        return [each.commit for each in ancestors(session, revision(reg, rev=rev))]


def test_the_last_commits_and_every_kth_and_tags_stay(reg: Registry, alice: Caller) -> None:
    made = checkpoints(reg, alice, 10)
    create_ref(reg, alice, NAME, "tag", "best", made[4])
    kept = [made[2], made[4], made[5], made[8], made[9]]  # numbers 3, 6 and 9; 5 has the tag
    dropped = [each for each in made if each not in kept]
    rule = Rule(keep_last=2, keep_every=3)
    would = prune(reg, alice, NAME, rule, dry_run=True)
    assert (would.commits, would.kept, count(reg, Revision)) == (dropped, 5, 10)
    assert would.size_bytes == len(dropped) * len(b"main 0")
    assert prune(reg, alice, NAME, rule) == would
    assert history(reg) == kept[::-1]
    assert prune(reg, alice, NAME, rule).commits == []  # numbers do not shift
    collect(reg, revision_grace_s=0)
    for commit in kept:
        assert read(reg, "w", commit) == b"main %d" % made.index(commit)
    assert is_clean(reg)


def test_a_pruned_revision_comes_back_on_a_branch_of_its_own(reg: Registry, alice: Caller) -> None:
    made = checkpoints(reg, alice, 4)
    prune(reg, alice, NAME, Rule(keep_last=1))
    take_back(reg, alice, NAME, made[1], "old")
    ingest_all(reg)
    assert (history(reg), history(reg, "old")) == ([made[3]], [made[1], made[0]])
    assert read(reg, "w", "old") == b"main 1"


def test_what_another_branch_keeps_stays(reg: Registry, alice: Caller) -> None:
    made = checkpoints(reg, alice, 3)
    create_ref(reg, alice, NAME, "branch", "side", made[1])
    side = checkpoints(reg, alice, 1, "side")
    prune(reg, alice, NAME, Rule(keep_last=2))
    assert history(reg) == [made[2], made[1]]
    assert history(reg, "side") == [side[0], made[1]]


def test_young_commits_stay(reg: Registry, alice: Caller) -> None:
    made = checkpoints(reg, alice, 4)
    with reg.db.write() as session:
        old = update(Revision).where(Revision.commit.in_(made[:2]))
        session.execute(old.values(created_at=utc_now() - timedelta(days=40)))
    assert prune(reg, alice, NAME, Rule(older_than_s=41 * 86400)).commits == []
    assert prune(reg, alice, NAME, Rule(older_than_s=30 * 86400)).commits == made[:2]
    assert history(reg) == made[:1:-1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(data=st.data())
def test_any_rule_keeps_heads_and_tags_and_every_file_of_what_it_keeps(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    with opened_registry(tmp_path_factory.mktemp("hub")) as reg:
        alice = caller(reg, "alice")
        made = [push(reg, alice, NAME, {"w": b"0"}).commit]
        branches = {"main": made[0]}
        for number in range(data.draw(st.integers(2, 9))):
            ref = data.draw(st.sampled_from(["main", "side", "third"]))
            parent = None if ref in branches else data.draw(st.sampled_from(made))
            new = {f"f{number % 3}": b"%d" % number}
            branches[ref] = push(reg, alice, NAME, new, ref=ref, expected_parent=parent).commit
            made.append(branches[ref])
        tagged = data.draw(st.sampled_from(made))
        create_ref(reg, alice, NAME, "tag", "t", tagged)
        trees = {commit: files(reg, commit) for commit in made}
        chains = {ref: history(reg, ref) for ref in branches}
        rule = Rule(data.draw(st.integers(1, 4)), data.draw(st.none() | st.integers(1, 4)))
        gone = set(prune(reg, alice, NAME, rule).commits)
        for ref, chain in chains.items():
            assert history(reg, ref) == [commit for commit in chain if commit not in gone]
            assert gone.isdisjoint(chain[: rule.keep_last])
        assert tagged not in gone
        assert {each: files(reg, each) for each in made if each not in gone} == {
            each: tree for each, tree in trees.items() if each not in gone
        }
        collect(reg, revision_grace_s=0)
        assert is_clean(reg)


@pytest.mark.parametrize("rule", [Rule(0), Rule(1, 0), Rule(1, None, -1), Rule(10**9)])
def test_numbers_that_make_no_sense_are_refused(reg: Registry, alice: Caller, rule: Rule) -> None:
    checkpoints(reg, alice, 1)
    for do in (lambda: prune(reg, alice, NAME, rule), lambda: set_rule(reg, alice, NAME, rule)):
        with pytest.raises(InvalidRequest):
            do()


def test_a_rule_of_the_namespace_counts_where_the_repository_has_none(
    reg: Registry, alice: Caller
) -> None:
    checkpoints(reg, alice, 5)
    bob = caller(reg, "bob")
    assert get_rule(reg, alice, NAME) is None
    set_rule(reg, alice, "alice", Rule(keep_last=3))
    assert get_rule(reg, alice, NAME) == (Rule(keep_last=3), "alice")
    for target in ("alice", NAME):
        with pytest.raises(Forbidden):
            set_rule(reg, bob, target, Rule())
        with pytest.raises(Forbidden):
            get_rule(reg, bob, target)
    with reg.db.read() as session:
        repository = load_repository(session, alice, NAME).id
    assert len((apply_rule(reg, repository) or prune(reg, alice, NAME, Rule(9))).commits) == 2
    set_rule(reg, alice, NAME, Rule(keep_last=2))
    assert get_rule(reg, alice, NAME) == (Rule(keep_last=2), NAME)
    plan = plan_gc(reg)
    assert plan.rules == (Due(NAME, NAME, 1),)
    assert f"by the rule of {NAME} first, {NAME}: 1 revision" in "\n".join(plan_lines(plan))
    assert tidy(reg) == 1
    assert plan_gc(reg).rules == ()
    set_rule(reg, alice, NAME, None)
    set_rule(reg, alice, "alice", None)
    assert (tidy(reg), get_rule(reg, alice, NAME), len(history(reg))) == (0, None, 2)
