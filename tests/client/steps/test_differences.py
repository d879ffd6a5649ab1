"""The door that encodes differences: who may ask for what, and how much work it takes."""

import http.client
import json
import time
from contextvars import copy_context

import pytest
import torch
from sqlalchemy import select

from deltahub.client import Hub
from deltahub.codecs.frames import FrameView
from deltahub.registry import cancellation
from deltahub.registry.catalog.refs import resolve_revision
from deltahub.registry.db.models import Repository
from deltahub.registry.downloads import differences
from deltahub.registry.downloads.differences import Wanted, encode_differences
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.errors import Cancelled
from deltahub.server.routes.runs.steps import get_differences
from deltahub.server.turns import cost_of
from support.service.hub import Answer, RunningHub
from support.steps.trained import trained_steps


@pytest.fixture
def tensors(hub: Hub, name: str) -> list[dict[str, str]]:
    """Name -> content id of each of three steps."""
    found = []
    for number, weights in enumerate(trained_steps(3)):
        hub.push_step(name, number, weights)
        held = hub._held_steps[name].tensors
        found.append({key: each.tensor.hex() for key, each in held.items()})
    return found


def _ask(hub: RunningHub, name: str, token: str | None = None, **body: object) -> Answer:
    path = f"/v1/repositories/{name}/differences?revision=step-2"
    return hub.call("POST", path, token=token or hub.admin_token, body=body)


def _views(body: bytes) -> list[FrameView]:
    found = []
    while body:
        found.append(FrameView.parse(body))
        body = body[found[-1].header.frame_length :]
    return found


def test_a_difference_is_against_the_tensor_that_was_named(
    hub_server: RunningHub, name: str, tensors: list[dict[str, str]]
) -> None:
    key = "blocks.0.up.weight"
    answer = _ask(hub_server, name, base="step-0", tensors=[[tensors[2][key], tensors[0][key]]])
    assert answer.status == 200
    (view,) = _views(answer.body)
    assert view.header.tensor.hex() == tensors[2][key]
    assert view.header.base is not None
    assert [each.hex() for each in view.header.base.base_ids()] == [tensors[0][key]]
    again = _ask(hub_server, name, base="step-0", tensors=[[tensors[2][key], tensors[0][key]]])
    assert again.body == answer.body
    (alone,) = _views(_ask(hub_server, name, tensors=[[tensors[2][key], None]]).body)
    assert alone.header.base is None


def test_only_tensors_of_the_two_revisions_are_served(
    hub: Hub, hub_server: RunningHub, name: str, tensors: list[dict[str, str]]
) -> None:
    key = "blocks.0.up.weight"
    other = f"{name}-other"
    hub.push_step(other, 0, {"a": torch.arange(5000, dtype=torch.float32)})
    foreign = hub._held_steps[other].tensors["a"].tensor.hex()
    for pair in ([foreign, None], [tensors[2][key], foreign], [tensors[0][key], None]):
        answer = _ask(hub_server, name, base="step-1", tensors=[pair])
        assert (answer.status, answer.code) == (404, "tensor_not_found"), pair
    missing = _ask(hub_server, name, base="step-9", tensors=[[tensors[2][key], None]])
    assert (missing.status, missing.code) == (404, "revision_not_found")
    assert "has no step 9" in missing.message
    stranger = hub_server.user("stranger-to-steps")
    path = f"/v1/repositories/{name}/differences?revision=step-2"
    body = {"tensors": [[tensors[2][key], None]]}
    assert hub_server.call("POST", path, token=stranger, body=body).status == 404


@pytest.mark.parametrize(
    "body",
    [
        {"tensors": [["00", None]]},
        {"tensors": "all"},
        {"tensors": [], "first_byte": -1},
        {"tensors": [], "more": 1},
        {},
    ],
)
def test_odd_requests_are_refused(
    hub_server: RunningHub, name: str, body: dict[str, object], tensors: list[dict[str, str]]
) -> None:
    assert _ask(hub_server, name, **body).status in (400, 422)


def test_an_answer_ends_and_the_next_one_goes_on(
    hub: Hub, hub_server: RunningHub, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "_DECODED_BYTES", 100_000)
    first, _, last = trained_steps(3)
    hub.push_step(name, 0, first)
    with Hub(hub_server.url, hub_server.admin_token) as engine:
        engine.pull_step(name)
        hub.push_step(name, 1, trained_steps(3)[1])
        hub.push_step(name, 2, last)
        pulled = engine.pull_step(name)
    assert all(torch.equal(pulled.tensors[key], each) for key, each in last.items())
    assert pulled.since == 0


def test_work_ends_when_the_client_leaves(
    hub_server: RunningHub, name: str, tensors: list[dict[str, str]]
) -> None:
    reg = hub_server.registry
    reader = FileReader(reg)
    with reg.db.read() as session:
        query = select(Repository).where(Repository.name == name.partition("/")[2])
        repository = session.scalars(query).one()
        revision = resolve_revision(session, repository, "step-2")
        base = resolve_revision(session, repository, "step-0")
    wanted = [
        Wanted(bytes.fromhex(tensors[2][key]), bytes.fromhex(tensors[0][key])) for key in tensors[2]
    ]
    client = cancellation.Cancellation()
    client.cancel()

    def ask() -> None:
        cancellation.use(client)
        encode_differences(reg, reader, revision, base, wanted, 0)

    with pytest.raises(Cancelled):
        copy_context().run(ask)
    assert reader.differences.used_bytes == 0
    assert len(encode_differences(reg, reader, revision, base, wanted, 0)) == len(wanted)


def test_a_client_that_leaves_in_the_middle_of_an_answer_costs_nobody_a_turn(
    hub_server: RunningHub, name: str, tensors: list[dict[str, str]]
) -> None:
    pairs = [[tensors[2][key], tensors[0][key]] for key in tensors[2]]
    body = json.dumps({"base": "step-0", "tensors": pairs})
    headers = {
        "Authorization": f"Bearer {hub_server.admin_token}",
        "Content-Type": "application/json",
    }
    path = f"/v1/repositories/{name}/differences?revision=step-2"
    for _ in range(5):
        connection = http.client.HTTPConnection(*hub_server.address)
        connection.request("POST", path, body, headers)
        connection.close()
    begin = time.monotonic()
    assert _ask(hub_server, name, base="step-0", tensors=pairs).status == 200
    assert time.monotonic() - begin < 20


def test_no_more_answers_are_made_than_are_sent() -> None:
    cost = cost_of(get_differences, {"POST"})
    assert cost is not None
    # A slot of long answers is there before one is made, and until it is sent.
    assert (cost.is_long, cost.is_heavy, cost.is_bounded, cost.writes) == (True, True, True, False)
