"""The Python SDK of DeltaHub: `Hub`, the types that its methods return, and its errors."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltahub.client.errors import (
        BadResponse,
        ClientError,
        Conflict,
        DiskFull,
        Forbidden,
        HubError,
        HubUnreachable,
        InvalidArgument,
        InvalidRequest,
        JobFailed,
        LimitExceeded,
        LocalFileChanged,
        NotFound,
        RefMoved,
        RepositoryNotFound,
        RevisionNotFound,
        StorageFull,
        Unauthorized,
        VerificationFailed,
    )
    from deltahub.client.hub import Hub
    from deltahub.client.progress import Bars, Lines, Progress, Silent, Stage
    from deltahub.client.records import (
        CommitResult,
        Entry,
        Job,
        PullResult,
        PushResult,
        Ref,
        Repository,
        Revision,
        WhoAmI,
    )
    from deltahub.codecs.errors import (
        CodecError,
        CorruptFrame,
        InvalidInput,
        InvalidSafetensors,
        NoGpu,
        UnsupportedVersion,
    )
    from deltahub.methods.errors import CannotExport, MethodError

__all__ = [
    "BadResponse",
    "Bars",
    "CannotExport",
    "ClientError",
    "CodecError",
    "CommitResult",
    "Conflict",
    "CorruptFrame",
    "DiskFull",
    "Entry",
    "Forbidden",
    "Hub",
    "HubError",
    "HubUnreachable",
    "InvalidArgument",
    "InvalidInput",
    "InvalidRequest",
    "InvalidSafetensors",
    "Job",
    "JobFailed",
    "LimitExceeded",
    "Lines",
    "LocalFileChanged",
    "MethodError",
    "NoGpu",
    "NotFound",
    "Progress",
    "PullResult",
    "PushResult",
    "Ref",
    "RefMoved",
    "Repository",
    "RepositoryNotFound",
    "Revision",
    "RevisionNotFound",
    "Silent",
    "Stage",
    "StorageFull",
    "Unauthorized",
    "UnsupportedVersion",
    "VerificationFailed",
    "WhoAmI",
]


# In the order of the time that they take to import.
_MODULES = (
    *(f"{__name__}.{module}" for module in ("errors", "records", "progress", "hub")),
    "deltahub.methods.errors",
    "deltahub.codecs.errors",
)


def __getattr__(name: str) -> object:
    """A public name, imported at its first use, because `deltahub` must start quickly."""
    if name in __all__:
        for module in _MODULES:
            found = vars(importlib.import_module(module)).get(name)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(globals().keys() | set(__all__))
