"""Steps of a run: from a trainer's memory to an engine's, and no fork by mistake."""

import pytest

from deltahub.client import Hub, RefMoved
from deltahub.client.errors import Conflict
from support.service.hub import RunningHub
from support.steps.trained import is_same, trained_steps


def test_an_engine_gets_one_difference_to_the_newest_step(
    hub: Hub, hub_server: RunningHub, name: str
) -> None:
    weights = trained_steps(3)
    size = hub.push_step(name, 0, weights[0]).size
    with Hub(hub_server.url, hub_server.admin_token) as engine:
        seed = engine.pull_step(name)
        assert is_same(seed.tensors, weights[0])
        for number in (1, 2):
            pushed = hub.push_step(name, number, weights[number])
            assert pushed.sent < 0.03 * size
        newest = engine.pull_step(name)
        assert (newest.number, newest.since) == (2, 0)
        assert is_same(newest.tensors, weights[2])
        assert newest.received < 0.05 * size
        assert is_same(engine.pull_step(name, 1).tensors, weights[1])

        again = hub.push_step(name, 2, weights[2])
        assert (again.changed, again.sent, again.commit) == (False, 0, newest.commit)
        with pytest.raises(Conflict, match="step 2 already, with other bytes"):
            hub.push_step(name, 2, weights[1])
        with pytest.raises(RefMoved, match="is at step 2, and this push follows step 1"):
            engine.push_step(name, 3, weights[1])
    assert [each.number for each in hub.steps(name)] == [2, 1, 0]
    assert hub.repository(name).private
