"""What moves to an engine, from which step, and what happens to wrong bytes."""

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from deltahub.client import Hub, RevisionNotFound
from deltahub.client.progress import Silent, Stage
from deltahub.client.records import Rule
from support.service.hub import RunningHub
from support.steps.trained import is_same, trained_steps

_COUNT = 11


@pytest.fixture
def weights(hub: Hub, name: str) -> tuple[dict[str, torch.Tensor], ...]:
    """A run that is longer than a chain of differences may be."""
    found = trained_steps(_COUNT)
    for number, each in enumerate(found):
        hub.push_step(name, number, each)
    return found


def test_every_step_comes_bit_for_bit_from_every_other(
    weights: tuple[dict[str, torch.Tensor], ...], name: str, another: Callable[[], Hub]
) -> None:
    engine = another()
    size = engine.pull_step(name, 0).size
    for number in (1, 4, 3, 10, 0, 9, 10):
        pulled = engine.pull_step(name, number)
        assert is_same(pulled.tensors, weights[number]), number
        assert pulled.received < 0.15 * size, number


def test_a_composed_difference_is_smaller_than_the_steps_between(
    weights: tuple[dict[str, torch.Tensor], ...], name: str, another: Callable[[], Hub]
) -> None:
    direct, in_steps = another(), another()
    direct.pull_step(name, 2)
    in_steps.pull_step(name, 2)
    one = direct.pull_step(name, 7)
    assert one.since == 2
    by_step = [in_steps.pull_step(name, number) for number in range(3, 8)]
    assert one.received < 0.7 * sum(each.received for each in by_step)
    assert is_same(one.tensors, weights[7])


def test_a_late_joiner_gets_the_newest_step_whole_and_smaller_than_its_bytes(
    weights: tuple[dict[str, torch.Tensor], ...], name: str, another: Callable[[], Hub]
) -> None:
    pulled = another().pull_step(name)
    assert (pulled.number, pulled.since) == (_COUNT - 1, None)
    assert is_same(pulled.tensors, weights[-1])
    assert pulled.received < 0.8 * pulled.size


def test_retention_keeps_every_fourth_step_and_the_last_ones(
    weights: tuple[dict[str, torch.Tensor], ...], hub: Hub, name: str, another: Callable[[], Hub]
) -> None:
    behind, engine = another(), another()
    behind.pull_step(name, 5)
    dropped = hub.prune(name, Rule(keep_last=2, keep_every=4))
    assert len(dropped.commits) == _COUNT - 5
    assert [each.number for each in hub.steps(name)] == [10, 9, 8, 4, 0]
    with pytest.raises(RevisionNotFound, match="no step 5 any more; its newest steps are 0, 4, 8"):
        engine.pull_step(name, 5)
    for number in (0, 8, 9):
        assert is_same(engine.pull_step(name, number).tensors, weights[number]), number
    # One that holds a step that is dropped begins anew.
    pulled = behind.pull_step(name)
    assert (pulled.number, pulled.since) == (10, None)
    assert is_same(pulled.tensors, weights[10])


class _Prunes(Silent):
    """Retention drops steps when a pull has looked at what it holds, and before bytes move."""

    def __init__(self, hub: Hub, name: str) -> None:
        self._hub, self._name = hub, name
        self.notes: list[str] = []

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None, *, is_bytes: bool = True) -> Iterator[Stage]:
        self._hub.prune(self._name, Rule(keep_last=1))
        with super().stage(title, total, is_bytes=is_bytes) as stage:
            yield stage

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_held_step_that_is_dropped_during_a_pull_lets_the_new_one_come_whole(
    weights: tuple[dict[str, torch.Tensor], ...], hub: Hub, name: str, another: Callable[[], Hub]
) -> None:
    engine, told = another(), _Prunes(hub, name)
    engine.pull_step(name, 5)
    pulled = engine.pull_step(name, progress=told)
    assert (pulled.number, pulled.since) == (10, None)
    assert is_same(pulled.tensors, weights[10])
    assert len([note for note in told.notes if "no longer has step 5" in note]) == 1
    assert pulled.received > 0.3 * pulled.size


def test_a_step_that_is_dropped_during_its_pull_is_told(
    weights: tuple[dict[str, torch.Tensor], ...], hub: Hub, name: str, another: Callable[[], Hub]
) -> None:
    engine = another()
    engine.pull_step(name, 5)
    with pytest.raises(RevisionNotFound):
        engine.pull_step(name, 7, progress=_Prunes(hub, name))


def test_a_rule_of_retention_works_on_each_push(hub: Hub, name: str) -> None:
    weights = trained_steps(_COUNT)
    hub.push_step(name, 10, weights[0])
    hub.set_retention(name, Rule(keep_last=2, keep_every=20))
    for number in (15, 20, 25, 30):
        hub.push_step(name, number, weights[number // 5])
    _wait_for_steps(hub, name, 3)
    assert [each.number for each in hub.steps(name)] == [30, 25, 20]


def test_a_tag_keeps_a_step_from_retention(
    weights: tuple[dict[str, torch.Tensor], ...],
    hub: Hub,
    hub_server: RunningHub,
    name: str,
) -> None:
    path = f"/api/models/{name}/tag/step-3"
    made = hub_server.call(
        "POST", path, token=hub_server.admin_token, body={"tag": "best", "message": None}
    )
    assert made.status < 300, made.body
    hub.prune(name, Rule(keep_last=1))
    assert [each.number for each in hub.steps(name)] == [10, 3]


def test_a_damaged_step_in_memory_is_found_and_comes_again(
    weights: tuple[dict[str, torch.Tensor], ...], name: str, another: Callable[[], Hub]
) -> None:
    engine = another()
    seed = engine.pull_step(name, 0)
    for tensor in seed.tensors.values():
        tensor.view(torch.int16).flatten()[::7] += 1
    pulled = engine.pull_step(name, 1)
    assert is_same(pulled.tensors, weights[1])
    assert pulled.received > 0.3 * pulled.size
    assert is_same(engine.pull_step(name, 2).tensors, weights[2])


def test_what_has_not_changed_is_verified_too(
    hub: Hub, name: str, another: Callable[[], Hub]
) -> None:
    (weights,) = trained_steps(1)
    hub.push_step(name, 0, weights)
    hub.push_step(name, 1, weights)  # the same bytes are a step, too
    engine = another()
    tensor = engine.pull_step(name, 0).tensors["head.weight"]
    tensor.zero_()
    pulled = engine.pull_step(name, 1)
    assert pulled.changed == ("head.weight",)
    assert is_same(pulled.tensors, weights)


def test_any_client_reads_a_step_by_its_name(
    weights: tuple[dict[str, torch.Tensor], ...], hub: Hub, hub_server: RunningHub, name: str
) -> None:
    from safetensors.torch import load_file

    folder = hub.pull(name, revision="step-6")
    assert is_same(load_file(folder / "model.safetensors"), weights[6])
    commit = hub.revision(name, "step-6").commit
    token = hub_server.admin_token
    model = hub_server.call("GET", f"/api/models/{name}/revision/step-6", token=token)
    assert model.json()["sha"] == commit
    path = f"/{name}/resolve/step-6/model.safetensors"
    whole = hub_server.call("GET", path, token=token)
    assert whole.body == (folder / "model.safetensors").read_bytes()
    assert whole.headers["X-Repo-Commit"] == commit


def _wait_for_steps(hub: Hub, name: str, count: int) -> None:
    """The job that stores a commit applies the rule."""
    end = time.monotonic() + 60
    while len(hub.steps(name)) > count and time.monotonic() < end:
        time.sleep(0.1)
