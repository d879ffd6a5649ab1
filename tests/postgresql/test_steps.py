"""Of many trainers that push the next step of one run at once, one does."""

from concurrent.futures import ThreadPoolExecutor

from deltahub.registry import Registry
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.commit import AddFile, CommitResult, commit
from deltahub.registry.catalog.repositories import create_repository
from deltahub.registry.catalog.runs.steps import NewStep, list_steps
from deltahub.registry.errors import Conflict, RefMoved, RegistryError
from deltahub.registry.retention.prune import Rule, prune
from support.registry.opened import caller, upload

_TRAINERS = 6


def test_one_of_many_trainers_makes_the_next_step(reg: Registry) -> None:
    ann = caller(reg, "ann")
    create_repository(reg, ann, "ann/run", private=True)

    def push(number: int, trainer: int) -> CommitResult | RegistryError:
        data = b"%d %d" % (number, trainer)
        files = [AddFile("w.bin", upload(reg, ann, data), len(data))]
        after = number - 1 if number else None
        try:
            return commit(reg, ann, "ann/run", "main", files, step=NewStep(number, after))
        except RegistryError as exc:
            return exc

    for number in range(12):
        with ThreadPoolExecutor(_TRAINERS) as pool:
            done = list(pool.map(lambda trainer: push(number, trainer), range(_TRAINERS)))  # noqa: B023
        made = [each for each in done if isinstance(each, CommitResult)]
        assert len(made) == 1
        assert all(isinstance(each, Conflict | RefMoved | CommitResult) for each in done), done
        # The same step with the same bytes again is no other one.
        winner = done.index(made[0])
        again = push(number, winner)
        assert isinstance(again, CommitResult)
        assert (again.commit, again.changed) == (made[0].commit, False)
    prune(reg, ann, "ann/run", Rule(keep_last=1, keep_every=5))
    with reg.db.read() as session:
        run = load_repository(session, ann, "ann/run")
        assert [each.number for each in list_steps(session, run, None, 100)] == [11, 10, 5, 0]
        assert [each.number for each in list_steps(session, run, 10, 1)] == [5]
