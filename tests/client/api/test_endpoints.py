"""The names that users of the SDK may rely on, and answers that the client cannot use."""

import inspect
from typing import Any

import pytest

import deltahub.client
from deltahub.client import BadResponse, Hub
from deltahub.client.api.endpoints import Api
from deltahub.client.api.transport import Transport
from deltahub.client.records import HeldTensors


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


class Answering(Transport):
    """A hub whose every answer is this JSON."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def call(self, *args: Any, **options: Any) -> Any:
        return self

    def json(self) -> Any:
        return self.answer


@pytest.mark.parametrize("told", [{}, {"max_depth": None}, {"max_depth": -1}, {"max_depth": True}])
def test_a_hub_that_does_not_tell_its_depth_limit_is_reported(told: dict[str, Any]) -> None:
    api = Api(Answering({"have": ["ab" * 32], **told}))
    with pytest.raises(BadResponse, match="no number of 0 or more named max_depth"):
        api.query_tensors("ann/m", {"ab" * 32: 7})


def test_the_depth_limit_is_told_with_the_tensors_also_when_none_is_asked_for() -> None:
    api = Api(Answering({"have": ["ab" * 32], "max_depth": 3}))
    assert api.query_tensors("ann/m", {"ab" * 32: 7}) == HeldTensors({"ab" * 32}, 3)
    assert api.query_tensors("ann/m", {}) == HeldTensors(set(), 3)
