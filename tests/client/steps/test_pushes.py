"""What a push takes and refuses, and who may push the next step."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from deltahub.client import Hub, InvalidArgument, RefMoved
from deltahub.client.errors import Conflict, Forbidden, HubError, RepositoryNotFound
from deltahub.client.steps.records import PushedStep
from support.service.client_process import Finished, deltahub
from support.service.hub import RunningHub
from support.steps.trained import is_same, trained_steps


def test_of_two_trainers_at_once_one_pushes_the_next_step(
    hub: Hub, name: str, another: Callable[[], Hub]
) -> None:
    weights = trained_steps(5)
    hub.push_step(name, 0, weights[0])
    for turn in (1, 2, 3):
        mine = dict(weights[turn])
        mine["norm.bias"] = mine["norm.bias"] + 0.001
        done = _push_at_once([another(), another()], name, turn, [weights[turn], mine])
        assert sorted(isinstance(each, PushedStep) for each in done) == [False, True]
        (refused,) = (each for each in done if isinstance(each, HubError))
        assert isinstance(refused, Conflict)
        (made,) = (each for each in done if isinstance(each, PushedStep))
        pulled = another().pull_step(name)
        assert pulled.commit == made.commit
        assert is_same(pulled.tensors, weights[turn]) != is_same(pulled.tensors, mine)
    assert [each.number for each in hub.steps(name)] == [3, 2, 1, 0]


def _push_at_once(
    trainers: list[Hub], name: str, step: int, weights: list[dict[str, torch.Tensor]]
) -> list[PushedStep | HubError]:
    for trainer in trainers:
        trainer.pull_step(name)
    barrier = threading.Barrier(len(trainers))
    done: list[PushedStep | HubError] = []

    def push(trainer: Hub, own: dict[str, torch.Tensor]) -> None:
        barrier.wait()
        try:
            done.append(trainer.push_step(name, step, own))
        except HubError as exc:
            done.append(exc)

    threads = [
        threading.Thread(target=push, args=pair) for pair in zip(trainers, weights, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


def test_two_trainers_cannot_both_begin_a_run(
    hub: Hub, name: str, another: Callable[[], Hub]
) -> None:
    first, second = trained_steps(2)
    hub.push_step(name, 0, first)
    with pytest.raises(RefMoved, match="at step 0, and this push does not say"):
        another().push_step(name, 1, second)
    # A trainer that was started again says where it goes on.
    assert another().push_step(name, 1, second, after=0).changed


def test_a_step_that_was_skipped_cannot_be_pushed_later(hub: Hub, name: str) -> None:
    first, second, third = trained_steps(3)
    hub.push_step(name, 5, first)
    hub.push_step(name, 9, second)
    with pytest.raises(RefMoved, match="at step 9"):
        hub.push_step(name, 7, third)


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.15, 0.3, 0.6, 1.2])
def test_a_trainer_that_is_killed_leaves_the_run_at_a_whole_step(
    hub: Hub, hub_server: RunningHub, name: str, delay_s: float, tmp_path: Path,
    another: Callable[[], Hub],
) -> None:  # fmt: skip
    weights = trained_steps(3)
    hub.push_step(name, 0, weights[0])
    for number in (1, 2):
        torch.save(weights[number], tmp_path / f"{number}.pt")
    code = (
        "import sys, torch\n"
        "from deltahub.client import Hub\n"
        "hub = Hub(sys.argv[1], sys.argv[2])\n"
        "hub.pull_step(sys.argv[3])\n"
        "print('ready', flush=True)\n"
        "for number in (1, 2):\n"
        "    hub.push_step(sys.argv[3], number, torch.load(f'{sys.argv[4]}/{number}.pt'))\n"
    )
    arguments = [hub_server.url, hub_server.admin_token, name, str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
    trainer = another()
    at = trainer.pull_step(name)
    assert is_same(at.tensors, weights[at.number])
    for number in range(at.number + 1, 3):
        # The hub may have made this step since: the killed trainer's last request was under way.
        trainer.push_step(name, number, weights[number])
    assert is_same(another().pull_step(name).tensors, weights[2])
    assert [each.number for each in hub.steps(name)] == [2, 1, 0]


def test_tensors_come_from_anywhere_and_in_any_layout(
    hub: Hub, name: str, another: Callable[[], Hub]
) -> None:
    square = torch.arange(4096, dtype=torch.float32).reshape(64, 64)
    given = {
        "transposed": square.t(),
        "sliced": square[::2, 3:],
        "expanded": square[:1].expand(8, 64),
        "scalar": torch.tensor(2.5),
        "parameter": torch.nn.Parameter(square.to(torch.bfloat16)),
        "conjugated": torch.complex(square, -square).conj(),
        "float8": square.to(torch.float8_e4m3fn),
        "flags": square > 7,
        "numpy": np.asfortranarray(np.arange(60, dtype=np.int16).reshape(5, 12)),
        "big-endian": np.arange(60, dtype=">f4"),
        "numpy scalar": np.float64(0.1),
        "tied": square,
        "tied, too": square,
    }
    hub.push_step(name, 0, given)
    pulled = another().pull_step(name).tensors
    assert torch.equal(pulled["transposed"], square.t())
    assert torch.equal(pulled["sliced"], square[::2, 3:])
    assert torch.equal(pulled["expanded"], square[:1].expand(8, 64))
    assert pulled["scalar"].shape == ()
    assert pulled["scalar"].item() == 2.5
    assert torch.equal(pulled["parameter"], square.to(torch.bfloat16))
    assert torch.equal(pulled["conjugated"], given["conjugated"])
    assert pulled["float8"].dtype == torch.float8_e4m3fn
    assert torch.equal(pulled["float8"].view(torch.uint8), given["float8"].view(torch.uint8))
    assert torch.equal(pulled["flags"], given["flags"])
    assert np.array_equal(pulled["numpy"].numpy(), given["numpy"])
    assert np.array_equal(pulled["big-endian"].numpy(), given["big-endian"])
    assert pulled["numpy scalar"].item() == 0.1
    assert torch.equal(pulled["tied"], square)
    assert torch.equal(pulled["tied, too"], square)


def test_numpy_has_what_it_can_name(hub: Hub, name: str, another: Callable[[], Hub]) -> None:
    plain = {"a": np.arange(300, dtype=np.float32), "flags": np.arange(300) % 3 == 0}
    hub.push_step(name, 0, plain)
    pulled = another().pull_step(name, framework="numpy").tensors
    assert all(np.array_equal(pulled[key], value) for key, value in plain.items())
    hub.push_step(f"{name}-bf16", 0, {"a": torch.ones(9, dtype=torch.bfloat16)})
    with pytest.raises(InvalidArgument, match="ml_dtypes: install it, or ask"):
        another().pull_step(f"{name}-bf16", framework="numpy")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "a step without tensors"),
        ([torch.ones(3)], "a mapping of names to tensors"),
        ({"a": "text"}, "a is builtins.str: give a tensor of torch or an array of numpy"),
        ({"a": np.array(["x"])}, "elements of type str"),
        ({"a": torch.ones(0, 4)}, "a has no elements"),
        ({"a": torch.ones(3, device="meta")}, "on the device meta"),
        ({"a": torch.eye(3).to_sparse()}, "torch.sparse_coo"),
        ({"a": torch.ones(3, dtype=torch.complex128)}, "elements of type complex128"),
        ({"": torch.ones(3)}, "is not the name of a tensor"),
        ({"__metadata__": torch.ones(3)}, "is not the name of a tensor"),
        ({"\ud800": torch.ones(3)}, "not valid Unicode"),
        ({str(i): None for i in range(100_001)}, "at most 100000"),
    ],
)  # fmt: skip
def test_what_is_no_step_is_refused_before_anything_moves(
    hub: Hub, name: str, given: object, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        hub.push_step(name, 0, given)  # type: ignore[arg-type]
    with pytest.raises(RepositoryNotFound):
        hub.repository(name)


@pytest.mark.parametrize("change", ["missing", "new", "shape", "dtype"])
def test_other_tensors_than_in_the_step_before_are_refused(
    hub: Hub, name: str, change: str, another: Callable[[], Hub]
) -> None:
    first = {"a": torch.ones(600), "b": torch.ones(600)}
    hub.push_step(name, 0, first)
    other = dict(first)
    if change == "missing":
        del other["b"]
    elif change == "new":
        other["c"] = torch.ones(3)
    else:
        other["b"] = torch.ones(601) if change == "shape" else torch.ones(600).half()
    said = r"not those of the step before: [bc] is .*another run"
    with pytest.raises(InvalidArgument, match=said):
        hub.push_step(name, 1, other)
    with pytest.raises(InvalidArgument, match=said):
        another().push_step(name, 1, other, after=0)
    assert hub.newest_step(name) == 0


@pytest.mark.parametrize("step", [-1, 10**12, True, 1.0, "1"])
def test_a_number_that_no_step_has_is_refused(hub: Hub, name: str, step: object) -> None:
    with pytest.raises(InvalidArgument, match="step is a whole number from 0 to 999999999999"):
        hub.push_step(name, step, {"a": torch.ones(3)})  # type: ignore[arg-type]


def test_a_reader_cannot_push_a_step(hub: Hub, hub_server: RunningHub, name: str) -> None:
    hub.push_step(name, 0, {"a": torch.ones(600)})
    with Hub(hub_server.url, hub.create_token("reader")) as reader:
        reader.pull_step(name)
        with pytest.raises(Forbidden):
            reader.push_step(name, 1, {"a": torch.zeros(600)})
    assert hub.newest_step(name) == 0


def test_an_unknown_run_and_one_without_steps_say_so(hub: Hub, name: str) -> None:
    with pytest.raises(RepositoryNotFound):
        hub.pull_step(name)
    hub.create(name)
    with pytest.raises(HubError, match="has no steps yet"):
        hub.pull_step(name)
    with pytest.raises(HubError):
        hub.pull_step(name, 3)


def test_the_trainer_may_write_into_its_tensors_after_the_push(
    hub: Hub, name: str, another: Callable[[], Hub]
) -> None:
    mine = {"a": torch.arange(2000, dtype=torch.float32)}
    hub.push_step(name, 0, mine)
    mine["a"] += 1
    hub.push_step(name, 1, mine)
    engine = another()
    assert torch.equal(engine.pull_step(name, 0).tensors["a"] + 1, mine["a"])
    assert torch.equal(engine.pull_step(name, 1).tensors["a"], mine["a"])


def test_a_trainer_that_writes_to_a_disk_pushes_folders(
    hub: Hub, hub_server: RunningHub, name: str, tmp_path: Path, another: Callable[[], Hub],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("DELTAHUB_URL", hub_server.url)
    monkeypatch.setenv("DELTAHUB_TOKEN", hub_server.admin_token)
    weights = trained_steps(3)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")

    def push(number: int, *more: str) -> Finished:
        save_file(weights[number], folder / "model.safetensors")
        return deltahub("steps", "push", str(folder), name, str(number), *more, "--json")

    assert push(0).json()["changed"]
    assert hub.repository(name).private
    refused = push(1)
    assert refused.status == 1
    assert "does not say which step it follows: give after=0" in refused.error()["message"]
    pushed = push(1, "--after", "0").json()
    assert pushed["changed"]
    assert pushed["sent"] < 0.1 * pushed["size"]
    assert push(1, "--after", "0").json()["changed"] is False
    save_file(weights[2], folder / "model.safetensors")
    other = deltahub("steps", "push", str(folder), name, "1", "--after", "0")
    assert other.status == 1
    assert "step 1 already, with other bytes" in other.err
    engine = another()
    engine.pull_step(name, 0)
    pulled = engine.pull_step(name)
    assert (pulled.number, pulled.since) == (1, 0)
    assert is_same(pulled.tensors, weights[1])

    listed = deltahub("steps", "ls", name, "--json").json()
    assert [each["number"] for each in listed["items"]] == [1, 0]
    fetched = deltahub("steps", "pull", name, "0", "--to", str(tmp_path / "to"))
    assert fetched.out.strip() == str(tmp_path / "to")
    exported = deltahub("steps", "export", name, str(tmp_path / "out"), "--layout", "skyrl")
    assert "version 1" in exported.out
    assert (tmp_path / "out" / "delta-00000001" / "manifest.json").exists()


def test_a_trainer_may_go_on_from_the_very_tensors_that_it_pulled(
    hub: Hub, name: str, another: Callable[[], Hub]
) -> None:
    hub.push_step(name, 0, {"a": torch.arange(5000.0), "b": torch.ones(5000)})
    trainer = another()
    mine = trainer.pull_step(name).tensors
    mine["a"] += 1
    pushed = trainer.push_step(name, 1, mine)
    assert pushed.changed
    mine["a"] += 1
    assert trainer.push_step(name, 2, mine).changed_tensors == 1
    engine = another()
    for number in (0, 1, 2):
        pulled = engine.pull_step(name, number).tensors
        assert torch.equal(pulled["a"], torch.arange(5000.0) + number)
        assert torch.equal(pulled["b"], torch.ones(5000))


def test_a_run_may_begin_in_a_repository_that_has_weights(
    hub: Hub, name: str, tmp_path: Path, another: Callable[[], Hub]
) -> None:
    first, second = trained_steps(2)
    folder = tmp_path / "start"
    folder.mkdir()
    for number, key in enumerate(sorted(first)[:2], 1):
        save_file({key: first[key]}, folder / f"model-{number:05d}-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "config.json").write_text("{}")
    hub.push(folder, name, private=True)
    hub.push_step(name, 0, first)
    hub.push_step(name, 1, second)
    assert {entry.path for entry in hub.revision(name, "step-1").entries} == {
        "config.json",
        "model.safetensors",
    }
    assert is_same(another().pull_step(name).tensors, second)
    assert hub.push_step(name, 1, second).changed is False
