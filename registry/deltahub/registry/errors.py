"""What the rules refuse. Every class has a stable `code` that the API sends and the SDK maps back.

RegistryError
 |- NotFound              repository, revision, file, upload, tensor, job: absent, or not yours
 |- Unauthorized          no token, or one that is unknown or expired
 |- Forbidden             known to you, but not allowed with this role or token scope
 |- Conflict              the state changed under you, or the name is taken
 |- InvalidRequest        names, paths, sizes, hashes that cannot be right
 |- LimitExceeded         larger than a configured limit
 |- StorageFull           the disk has no room
 |- Unavailable           the database or the store did not answer; trying again may help
 |   |- Busy               as much as the hub takes at once is under way already
 |- SchemaTooNew          the data folder was written by a newer release
 |- DataLost              stored bytes do not check; the operator must run fsck
"""

from typing import ClassVar


class RegistryError(Exception):
    """The root. `code` is the wire name; the message names the thing, the limit, the way out."""

    code: ClassVar[str] = "registry_error"


class NotFound(RegistryError):
    code = "not_found"


class RepositoryNotFound(NotFound):
    code = "repository_not_found"


class RevisionNotFound(NotFound):
    code = "revision_not_found"


class EntryNotFound(NotFound):
    code = "entry_not_found"


class UploadNotFound(NotFound):
    code = "upload_not_found"


class TensorNotFound(NotFound):
    code = "tensor_not_found"


class JobNotFound(NotFound):
    code = "job_not_found"


class Unauthorized(RegistryError):
    code = "unauthorized"


class Forbidden(RegistryError):
    code = "forbidden"


class Conflict(RegistryError):
    code = "conflict"


class RepositoryExists(Conflict):
    code = "repository_exists"


class NameTaken(Conflict):
    code = "name_taken"


class RefMoved(Conflict):
    """Somebody else's commit came first; read the branch again and repeat."""

    code = "ref_moved"


class NotReady(Conflict):
    """The thing exists but its job has not finished."""

    code = "not_ready"


class UploadOffsetMismatch(Conflict):
    """The part does not begin where the hub's copy ends."""

    code = "upload_offset_mismatch"


class DeltaCycle(Conflict):
    """Two tensors would need each other, or a chain would be deeper than allowed."""

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
    """A frame, pack or recipe from a client that does not decode to what it says."""

    code = "invalid_frame"


class LimitExceeded(RegistryError):
    code = "limit_exceeded"


class StorageFull(RegistryError):
    code = "storage_full"


class Unavailable(RegistryError):
    """Nothing was changed; the same request may succeed later."""

    code = "unavailable"


class Busy(Unavailable):
    """Nothing is wrong: whoever waits and asks again has its turn."""

    code = "busy"


class SchemaTooNew(RegistryError):
    """Met while starting, never sent to a client."""

    code = "schema_too_new"


class DataLost(RegistryError):
    code = "data_lost"


class JobFailed(RegistryError):
    code = "job_failed"
