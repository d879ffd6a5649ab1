"""The errors that `Hub` raises. Every class has the stable `code` of the API.

`deltahub.client.inference` computes on this machine, and also raises what the codecs and methods
find in weights and arguments: CodecError and MethodError, which know no hub.

HubError
 |- NotFound, Unauthorized, Forbidden, Conflict, InvalidRequest, LimitExceeded, StorageFull,
 |  DataLost, JobFailed, ...      the hub sent this code
 |- ClientError                   found by the client; the hub never sends these codes
     |- HubUnreachable            no connection, or it stayed broken for longer than patience_s
     |- BadResponse               an answer that is not a hub's
     |- VerificationFailed        bytes whose hash was wrong twice
     |- DiskFull                  no space on this machine's disk
     |- LocalFileChanged          a file was written to while it was pushed
     |- InvalidArgument           a name, path or folder that is not valid
"""

from typing import ClassVar

from deltahub.client.escapes import printable


class HubError(Exception):
    """The root class. `code` is the API's name, `status` the HTTP status if the hub answered.

    `message` is as the hub sent it. str() escapes characters that change what a terminal shows.
    """

    code: str = "registry_error"

    def __init__(self, message: str, *, code: str | None = None, status: int | None = None) -> None:
        super().__init__(printable(message))  # tracebacks go to terminals
        self.message = message
        self.status = status
        self.retry_after_s = 0.0  # how long the hub asks to wait before the next try
        if code is not None:
            self.code = code


class NotFound(HubError):
    """The thing does not exist, or the caller may not know that it does."""

    code = "not_found"


class RepositoryNotFound(NotFound):
    code = "repository_not_found"


class RevisionNotFound(NotFound):
    code = "revision_not_found"


class EntryNotFound(NotFound):
    code = "entry_not_found"


class AdapterQuarantined(HubError):
    """The weights of an adapter that every reader would load wrong, with the way out."""

    code = "adapter_quarantined"


class UploadNotFound(NotFound):
    code = "upload_not_found"


class TensorNotFound(NotFound):
    code = "tensor_not_found"


class JobNotFound(NotFound):
    code = "job_not_found"


class ComparisonNotFound(NotFound):
    code = "comparison_not_found"


class UpgradeNotFound(NotFound):
    code = "upgrade_not_found"


class Unauthorized(HubError):
    """The request had no token, or an unknown or expired one."""

    code = "unauthorized"


class Forbidden(HubError):
    code = "forbidden"


class Conflict(HubError):
    code = "conflict"


class RepositoryExists(Conflict):
    code = "repository_exists"


class NameTaken(Conflict):
    code = "name_taken"


class RefMoved(Conflict):
    """Another commit moved the branch first."""

    code = "ref_moved"


class NotReady(Conflict):
    """The thing exists but its job has not finished."""

    code = "not_ready"


class UploadOffsetMismatch(Conflict):
    code = "upload_offset_mismatch"


class DeltaCycle(Conflict):
    """Two tensors would be deltas of each other, or a chain of deltas would be too deep."""

    code = "delta_cycle"


class InvalidRequest(HubError):
    code = "invalid_request"


class InvalidName(InvalidRequest):
    code = "invalid_name"


class InvalidPath(InvalidRequest):
    code = "invalid_path"


class HashMismatch(InvalidRequest):
    code = "hash_mismatch"


class SizeMismatch(InvalidRequest):
    code = "size_mismatch"


class InvalidFrame(InvalidRequest):
    code = "invalid_frame"


class LimitExceeded(HubError):
    code = "limit_exceeded"


class QuotaExceeded(LimitExceeded):
    """The namespace may not use more."""

    code = "quota_exceeded"


class StorageFull(HubError):
    """The hub's disk has no room."""

    code = "storage_full"


class Unavailable(HubError):
    """The hub's database or store did not answer; nothing was changed."""

    code = "unavailable"


class Busy(Unavailable):
    """The hub has as many requests at work as it can handle; a later try succeeds."""

    code = "busy"


class Cancelled(HubError):
    """The hub stopped the work because the connection was closed."""

    code = "cancelled"


class SchemaTooNew(HubError):
    """The hub's data folder was written by a newer release."""

    code = "schema_too_new"


class DataLost(HubError):
    """Stored bytes fail their checksums; the hub's operator must run fsck."""

    code = "data_lost"


class JobFailed(HubError):
    """A job ended without its result; the message is the job's own."""

    code = "job_failed"


class ClientError(HubError):
    """Found by the client; the hub never sends these codes."""

    code = "client_error"


class HubUnreachable(ClientError):
    code = "hub_unreachable"


class BadResponse(ClientError):
    code = "bad_response"


class VerificationFailed(ClientError):
    code = "verification_failed"


class DiskFull(ClientError):
    code = "disk_full"


class LocalFileChanged(ClientError):
    code = "local_file_changed"


class InvalidArgument(ClientError):
    code = "invalid_argument"


class _Codes:
    """Error classes by code. A code of two classes fails at import."""

    by_code: ClassVar[dict[str, type[HubError]]] = {}

    @classmethod
    def register(cls, root: type[HubError]) -> None:
        if root.code in cls.by_code:
            raise AssertionError(f"two error classes have the code {root.code}")
        cls.by_code[root.code] = root
        for child in root.__subclasses__():
            cls.register(child)


_Codes.register(HubError)

CLIENT_CODES = frozenset(
    code for code, error in _Codes.by_code.items() if issubclass(error, ClientError)
)
HUB_CODES = frozenset(_Codes.by_code) - CLIENT_CODES

# For an answer without an error body of the API, such as a proxy's page.
_BY_STATUS: dict[int, type[HubError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: LimitExceeded,
    422: InvalidRequest,
    507: StorageFull,
}


def error_of(code: str | None, message: str, status: int | None = None) -> HubError:
    """The error for a code of the API; an unknown code keeps its name on the root class."""
    if code is None:
        return _BY_STATUS.get(status or 0, HubError)(message, status=status)
    found = _Codes.by_code.get(code)
    if found is None or code in CLIENT_CODES:
        return _BY_STATUS.get(status or 0, HubError)(message, code=code, status=status)
    return found(message, status=status)
