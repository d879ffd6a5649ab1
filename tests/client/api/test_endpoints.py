"""The public names of the SDK."""

import inspect

import deltahub.client
from deltahub.client import Hub


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
