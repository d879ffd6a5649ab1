"""The SDK: one class, one method a thing to do."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from deltahub.client.api.credentials import find_credentials
from deltahub.client.api.endpoints import Api
from deltahub.client.api.transport import Transport
from deltahub.client.errors import InvalidArgument
from deltahub.client.names import branch_name
from deltahub.client.progress import Progress, Silent
from deltahub.client.records import (
    CommitResult,
    Job,
    PullResult,
    PushResult,
    Ref,
    Repository,
    Revision,
    WhoAmI,
)

if TYPE_CHECKING:
    from deltahub.client.local.folder import LocalFile
    from deltahub.client.push.send import PushOptions


class Hub:
    """A hub and a user's token.

    url, token: by default DELTAHUB_URL and DELTAHUB_TOKEN, else what `deltahub login` stored,
    else the hub on this machine without a token. patience_s: how long a broken connection is
    tried again. Methods raise HubError classes (deltahub.client.errors). Use it as a context
    manager, or call close(), to end its kept connections.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, patience_s: float = 30.0
    ) -> None:
        found = find_credentials(url, token)
        self._transport = Transport(found.url, found.token, patience_s=patience_s)
        self._api = Api(self._transport)

    @property
    def url(self) -> str:
        return self._transport.url

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> "Hub":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- moving files ----------------------------------------------------------------------

    def push(
        self,
        folder: str | Path,
        name: str,
        *,
        base: str | None = None,
        revision: str = "main",
        message: str | None = None,
        mirror: bool = False,
        allow_empty: bool = False,
        wait: bool = True,
        private: bool | None = None,
        progress: Progress | None = None,
    ) -> PushResult:
        """Make the folder's files the newest revision of a branch; what the hub did.

        name: `namespace/name`, created if it does not exist (private: its visibility then).
        base: `namespace/name[@revision]` that this was fine-tuned from; declared to the hub. None
        leaves what was declared before, `none` takes it back.
        mirror: also delete what the folder does not have; all of it for a folder without files,
        which is refused (InvalidArgument) without allow_empty. wait: return only when the hub has
        stored and verified everything (JobFailed if it could not), else right after the commit.
        Files that the hub has, in any repository that you may read, are not sent. A push that was
        interrupted is simply repeated.
        """
        from deltahub.client.local.folder import list_folder
        from deltahub.client.push.parent import find_parent
        from deltahub.client.push.send import PushOptions

        listed = list_folder(Path(folder))
        told = progress or Silent()
        for path, reason in listed.skipped.items():
            told.note(f"skipped {path}: {reason}")
        if not listed.files and not mirror:
            raise InvalidArgument(f"{folder} has no files to push")
        if not listed.files and not allow_empty:
            raise InvalidArgument(
                f"{folder} has no files: mirroring it would delete every file of "
                f"{name}@{revision}; allow_empty says that this is meant"
            )
        options = PushOptions(
            name=name,
            revision=revision,
            base=base,
            message=message,
            mirror=mirror,
            wait=wait,
            private=private,
            parent=find_parent(Path(folder)),
        )
        return self._push(listed.files, options, told)

    def upload_file(
        self,
        file: str | Path,
        name: str,
        *,
        path: str | None = None,
        base: str | None = None,
        revision: str = "main",
        message: str | None = None,
        wait: bool = True,
        private: bool | None = None,
        progress: Progress | None = None,
    ) -> PushResult:
        """Push one file. path: within the repository, by default the file's own name."""
        from deltahub.client.local.folder import single_file
        from deltahub.client.push.send import PushOptions

        local = single_file(Path(file), path or Path(file).name)
        options = PushOptions(
            name=name, revision=revision, base=base, message=message, wait=wait, private=private
        )
        return self._push([local], options, progress or Silent())

    def pull(
        self,
        name: str,
        *,
        revision: str = "main",
        to: str | Path | None = None,
        overwrite: bool = False,
        sha256: bool = False,
        progress: Progress | None = None,
    ) -> Path:
        """The local folder of a revision, every file of it present and verified.

        By default in the Hugging Face cache (HF_HUB_CACHE, HF_HOME), where transformers finds
        it; to: a folder of ordinary files instead. A file there that no pull left so is replaced
        with overwrite alone; without it InvalidArgument comes before anything is changed. Only
        what is not on this machine is moved, tensors of a fine-tune as the difference from its
        base. Files rebuilt from tensors are proved by BLAKE3 of each tensor; sha256: prove every
        whole file by its SHA-256, too.
        VerificationFailed when the bytes are wrong twice; DiskFull; never a damaged file.
        """
        return self.pull_with_report(
            name,
            revision=revision,
            to=to,
            overwrite=overwrite,
            sha256=sha256,
            progress=progress,
        ).path

    def pull_with_report(
        self,
        name: str,
        *,
        revision: str = "main",
        to: str | Path | None = None,
        overwrite: bool = False,
        sha256: bool = False,
        progress: Progress | None = None,
    ) -> PullResult:
        """Like pull, with what was moved and what was taken from this machine."""
        from deltahub.client.local.index import LocalIndex
        from deltahub.client.pull.pull import Pull

        index = LocalIndex.default()
        try:
            pull = Pull(
                self._api, index, progress or Silent(), name, revision, is_sha256_asked=sha256
            )
            return pull.run(None if to is None else Path(to), is_overwriting=overwrite)
        finally:
            index.close()

    def delete_files(
        self,
        name: str,
        paths: Iterable[str],
        *,
        revision: str = "main",
        message: str | None = None,
    ) -> CommitResult:
        """Commit a revision of the branch without these files; earlier revisions keep them."""
        branch_name(revision)
        operations = [{"op": "delete", "path": path} for path in paths]
        if not operations:
            raise InvalidArgument("no paths to delete were given")
        return self._api.commit(
            name, ref=revision, message=message, parent=None, base=None, operations=operations
        )

    # -- looking ---------------------------------------------------------------------------

    def list(
        self, namespace: str | None = None, *, search: str | None = None
    ) -> Sequence[Repository]:
        """Every repository that the caller may read."""
        return [*self._api.list_repositories(namespace, search)]

    def repository(self, name: str) -> Repository:
        return self._api.get_repository(name)

    def revision(self, name: str, revision: str = "main") -> Revision:
        """A revision and its files. revision: a branch, a tag, a commit or the start of one."""
        return self._api.get_revision(name, revision)

    def refs(self, name: str) -> Sequence[Ref]:
        """Branches and tags."""
        return self._api.list_refs(name)

    def info(self, name: str, revision: str = "main") -> dict[str, Any]:
        """How a revision is stored, as the hub tells it: files, tensors, bytes, bases."""
        return self._api.get_info(name, revision)

    def whoami(self) -> WhoAmI:
        return self._api.whoami()

    def job(self, job_id: str) -> Job:
        return self._api.get_job(job_id)

    def wait_for_job(self, job_id: str, *, progress: Progress | None = None) -> Job:
        """The job once it is done. JobFailed with the job's own text if it does not succeed."""
        from deltahub.client.api.jobs import wait_for_job

        return wait_for_job(self._api, job_id, progress or Silent())

    def cancel_job(self, job_id: str) -> None:
        self._api.cancel_job(job_id)

    # -- repositories ----------------------------------------------------------------------

    def create(self, name: str, *, private: bool = False) -> Repository:
        """Create an empty repository."""
        return self._api.create_repository(name, private=private)

    def set_private(self, name: str, private: bool) -> Repository:
        """Make a repository private, or public, with all its revisions.

        To become public takes as long as the hub needs to read all its files; until then it stays
        private. Conflict while a push to it is being proved.
        """
        return self._api.set_private(name, private=private)

    def delete(self, name: str) -> None:
        """Remove a repository with all its revisions."""
        self._api.delete_repository(name)

    def _push(
        self, files: "Sequence[LocalFile]", options: "PushOptions", progress: Progress
    ) -> PushResult:
        from deltahub.client.local.index import LocalIndex
        from deltahub.client.push.push import Push

        index = LocalIndex.default()
        try:
            return Push(self._api, index, progress, options).run(files)
        finally:
            index.close()
