"""The names that users of the SDK may rely on, and answers that the client cannot use."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import deltahub.client
from deltahub.client import BadResponse, Hub
from deltahub.client.api.endpoints import Api
from deltahub.client.api.transport import Transport
from deltahub.client.records import HeldTensors
from support.service.hostile_hub import HostileHub, hostile_hub, reply


def test_the_public_names_are_these() -> None:
    assert set(deltahub.client.__all__) == {
        "BadResponse", "Bars", "ClientError", "CommitResult", "Conflict", "DiskFull", "Entry",
        "Forbidden", "Hub", "HubError", "HubUnreachable", "InvalidArgument", "InvalidRequest",
        "Job", "JobFailed", "LimitExceeded", "Lines", "LocalFileChanged", "NotFound", "Progress",
        "PullResult", "PushResult", "Ref", "RefMoved", "Repository", "RepositoryNotFound",
        "Revision", "RevisionNotFound", "Silent", "Stage", "StorageFull", "Unauthorized",
        "VerificationFailed", "WhoAmI",
    }  # fmt: skip


def test_every_method_is_documented_or_says_it_by_its_name() -> None:
    plain = {"url", "close", "whoami", "job", "cancel_job", "repository"}
    for name, method in inspect.getmembers(Hub, inspect.isfunction):
        if not name.startswith("_") and name not in plain:
            assert method.__doc__, name


@pytest.fixture
def hub() -> Iterator[HostileHub]:
    with hostile_hub() as running:
        yield running


@pytest.fixture
def api(hub: HostileHub) -> Iterator[Api]:
    transport = Transport(hub.url, None)
    yield Api(transport)
    transport.close()


@pytest.mark.parametrize("told", [{}, {"max_depth": None}, {"max_depth": -1}, {"max_depth": True}])
def test_a_hub_that_does_not_tell_its_depth_limit_is_reported(
    hub: HostileHub, api: Api, told: dict[str, Any]
) -> None:
    path = "/v1/repositories/ann/m/tensors/query"
    hub.answers[f"POST {path}"] = reply({"have": ["ab" * 32], **told})
    with pytest.raises(BadResponse, match=f"POST {hub.url}{path} is odd: .*max_depth"):
        api.query_tensors("ann/m", {"ab" * 32: 7})


def test_the_depth_limit_is_told_with_the_tensors_also_when_none_is_asked_for(
    hub: HostileHub, api: Api
) -> None:
    answer = reply({"have": ["ab" * 32], "max_depth": 3})
    hub.answers["POST /v1/repositories/ann/m/tensors/query"] = answer
    assert api.query_tensors("ann/m", {"ab" * 32: 7}) == HeldTensors({"ab" * 32}, 3)
    assert api.query_tensors("ann/m", {}) == HeldTensors(set(), 3)
