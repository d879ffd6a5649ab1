"""Errors of the registry. The API sends the stable `code` of a class; the SDK maps it back.

RegistryError
 |- NotFound              a repository, file, tensor, job, ...: absent or not readable
 |- Unauthorized          no token, or an unknown or expired token
 |- Forbidden             readable by you, but your role or token scope does not allow the action
 |- Conflict              the state changed since you read it, or the name is taken
 |- InvalidRequest        invalid names, paths, sizes or hashes
 |- LimitExceeded         larger than a configured limit
 |- StorageFull           the disk has no room
 |- Unavailable           the database or the store did not answer; try again
 |   |- Busy               the hub already handles as many requests as it allows
 |- Cancelled             the client disconnected, so the work was stopped
 |- SchemaTooNew          the data folder was written by a newer release
 |- DataLost              stored bytes are damaged; the operator must run fsck
 |   |- DatabaseDamaged    the database's are
"""

from typing import ClassVar


class RegistryError(Exception):
    """The root of all errors. The message says what was wrong, the limit, and the way out."""

    code: ClassVar[str] = "registry_error"


class NotFound(RegistryError):
    code = "not_found"


class RepositoryNotFound(NotFound):
    code = "repository_not_found"


class RepositoryMoved(RepositoryNotFound):
    """The repository has another name now, which the caller may read."""

    def __init__(self, name: str, new_name: str) -> None:
        super().__init__(f"{name} was renamed: it is {new_name} now")
        self.name = name
        self.new_name = new_name


class RevisionNotFound(NotFound):
    code = "revision_not_found"


class EntryNotFound(NotFound):
    code = "entry_not_found"


class AdapterQuarantined(RegistryError):
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


class Unauthorized(RegistryError):
    code = "unauthorized"


class TokenExpired(Unauthorized):
    """The token was good until the date of its end."""


class Forbidden(RegistryError):
    code = "forbidden"


class Conflict(RegistryError):
    code = "conflict"


class RepositoryExists(Conflict):
    code = "repository_exists"


class NameTaken(Conflict):
    code = "name_taken"


class RefMoved(Conflict):
    """Another commit moved the branch first; read the branch again and repeat the commit."""

    code = "ref_moved"


class NotReady(Conflict):
    """The object exists, but its job has not finished."""

    code = "not_ready"


class UploadOffsetMismatch(Conflict):
    """The sent part does not begin at the end of the bytes that the hub has received."""

    code = "upload_offset_mismatch"


class DeltaCycle(Conflict):
    """Two tensors would be deltas of each other, or a chain would exceed the maximum depth."""

    code = "delta_cycle"


class InvalidRequest(RegistryError):
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
    """A client sent a frame, pack or recipe that does not decode to the content it declares."""

    code = "invalid_frame"


class LimitExceeded(RegistryError):
    code = "limit_exceeded"


class QuotaExceeded(LimitExceeded):
    """The namespace may not use more: delete something there, or ask the administrator."""

    code = "quota_exceeded"


class StorageFull(RegistryError):
    code = "storage_full"


class Unavailable(RegistryError):
    """Nothing was changed; the same request may succeed later."""

    code = "unavailable"


class WriteConflict(Unavailable):
    """Another writer changed the same rows first; what was being done begins again."""


class Busy(Unavailable):
    """The hub handles too many requests at once; the same request succeeds after a wait."""

    code = "busy"


class Cancelled(RegistryError):
    """The client disconnected; nobody reads the answer."""

    code = "cancelled"


class SchemaTooNew(RegistryError):
    """Raised only at start; no client sees it."""

    code = "schema_too_new"


class DataLost(RegistryError):
    """tensor: the content id of the tensor that cannot be read, where the error knows it."""

    code = "data_lost"
    tensor: bytes | None = None


class DatabaseDamaged(DataLost):
    """No push brings rows back."""


class JobFailed(RegistryError):
    code = "job_failed"
