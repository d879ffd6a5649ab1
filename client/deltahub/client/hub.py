"""`Hub`, the SDK's one class: a method for each operation."""

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from deltahub.client.adapters import Adapters
from deltahub.client.api.credentials import find_credentials
from deltahub.client.api.endpoints import Api
from deltahub.client.api.history import History
from deltahub.client.api.transport import Transport
from deltahub.client.errors import InvalidArgument, JobNotFound
from deltahub.client.exports import Exports
from deltahub.client.finding import Finding, Order
from deltahub.client.names import branch_name, named_revision
from deltahub.client.progress import Progress, Silent, count_of
from deltahub.client.records import (
    CommitResult,
    Job,
    PullResult,
    PushResult,
    Ref,
    Repository,
    Revision,
    WhoAmI,
    Withdrawal,
)
from deltahub.client.steps.steps import Steps
from deltahub.client.tokens import Tokens

if TYPE_CHECKING:
    from deltahub.client.local.folder import LocalFile
    from deltahub.client.push.send import PushOptions


class Hub(Adapters, Exports, Finding, History, Steps, Tokens):
    """A connection to one hub, with one user's token.

    url, token: by default DELTAHUB_URL and DELTAHUB_TOKEN, then the values that `deltahub login`
    stored, then the hub on this machine without a token. patience_s: seconds for which a broken
    connection is tried again. Methods raise subclasses of HubError (deltahub.client.errors). Use
    it as a context manager, or call close(), to close its connections.
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
        """Commit the folder's files as the newest revision of a branch.

        name: `namespace/name`. The repository is created if it does not exist; private: its
        visibility then. base: the model that this one was fine-tuned from, as
        `namespace/name[@revision]`, to declare to the hub. None keeps the base that was declared
        before; `none` removes it.
        mirror: also delete the branch's files that the folder does not have. A folder without
        files then deletes every file, and needs allow_empty (else InvalidArgument).
        wait: return when the hub has stored and verified everything (JobFailed if it could not);
        otherwise return right after the commit.
        Files that the hub has, in any repository that the caller may read, are not sent. Repeat
        a push that was interrupted.
        """
        from deltahub.client.local.folder import list_folder
        from deltahub.client.push.parent import find_parent
        from deltahub.client.push.send import PushOptions

        listed = list_folder(Path(folder))
        reporter = progress or Silent()
        for path, reason in listed.skipped.items():
            reporter.note(f"skipped {path}: {reason}")
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
        return self._push(listed.files, options, reporter)

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
        """Push one file. path: its path in the repository, by default the file's own name."""
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
        links: bool = True,
        bases: bool = True,
        progress: Progress | None = None,
    ) -> Path:
        """The local folder of a revision, with every file present and verified.

        By default the folder is in the Hugging Face cache (HF_HUB_CACHE, HF_HOME), where
        transformers finds it. to: a folder of ordinary files instead. A file there that a pull
        did not write, or that changed since, is replaced only with overwrite; without it
        InvalidArgument is raised before anything changes.
        Only bytes that this machine lacks are downloaded; a fine-tune's tensors come as
        differences from its base. Each tensor is verified by its BLAKE3, and each file by its
        SHA-256 before it gets its name. sha256: also read files that were here before, even if
        they have not changed since their SHA-256 was taken.
        links: read stored tensors straight from the hub's object store, where the hub gives links
        to it; without it, and where that fails, everything comes through the hub.
        bases: where that moves fewer bytes, first pull the weights that this model is stored as
        differences from into the Hugging Face cache, where the next such model finds them.
        Raises VerificationFailed when bytes were wrong twice, and DiskFull. A pull never leaves a
        damaged file.
        """
        return self.pull_with_report(
            name,
            revision=revision,
            to=to,
            overwrite=overwrite,
            sha256=sha256,
            links=links,
            bases=bases,
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
        links: bool = True,
        bases: bool = True,
        progress: Progress | None = None,
    ) -> PullResult:
        """Like pull, with the numbers of bytes that were downloaded and reused."""
        from deltahub.client.local.index import LocalIndex
        from deltahub.client.pull.pull import Pull

        index = LocalIndex.default()
        try:
            pull = Pull(
                self._api,
                index,
                progress or Silent(),
                name,
                revision,
                is_sha256_asked=sha256,
                has_links=links,
                siblings=1 if bases else 0,
            )
            return pull.run(None if to is None else Path(to), is_overwriting=overwrite)
        finally:
            index.close()

    def pull_base(
        self, name: str, revision: str = "main", *, progress: Progress | None = None
    ) -> PullResult:
        """Pull the base that a revision names, at the commit it was pushed with, into the cache.

        For an adapter this is the model that it is loaded on. InvalidArgument if the revision names
        none, or one that the hub lacks or you may not read.
        """
        declared = self.revision(name, revision).base
        if declared.declared is None or declared.commit is None:
            said = "names no base"
            if declared.declared is not None:
                said = f"names {declared.declared} as its base, which you cannot read here"
            raise InvalidArgument(f"{name}@{revision} {said}: pull without its base")
        base = declared.declared.partition("@")[0]
        return self.pull_with_report(base, revision=declared.commit, progress=progress)

    def pull_together(
        self, names: Sequence[str], *, progress: Progress | None = None
    ) -> list[PullResult]:
        """Pull several models, each `namespace/name[@revision]`, into the Hugging Face cache.

        A base that several of them are stored as differences from comes once, also where one of
        them alone would not be worth it. All else is as in pull_with_report.
        """
        from deltahub.client.local.index import LocalIndex
        from deltahub.client.pull.bases_first import count_siblings
        from deltahub.client.pull.pull import Pull

        index, told = LocalIndex.default(), progress or Silent()
        try:
            wanted = [(name, revision or "main") for name, revision in map(named_revision, names)]
            siblings = count_siblings(self._api, wanted)
            return [
                Pull(
                    self._api, index, told, name, revision, is_sha256_asked=False,
                    siblings=siblings[name, revision],
                ).run(None)
                for name, revision in wanted
            ]  # fmt: skip
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
        text = message or f"Delete {count_of(len(operations), 'file')}"
        return self._api.commit(
            name, ref=revision, message=text, parent=None, base=None, operations=operations
        )

    # -- looking ---------------------------------------------------------------------------

    def list(
        self,
        namespace: str | None = None,
        *,
        search: str | None = None,
        sort: Order = "created",
    ) -> Sequence[Repository]:
        """Every repository that the caller may read, in an order.

        search: a part of the name. sort: created and changed begin with the latest, the others
        with the most.
        """
        return [*self._api.list_repositories(namespace, search, sort)]

    def repository(self, name: str) -> Repository:
        return self._api.get_repository(name)

    def revision(self, name: str, revision: str = "main") -> Revision:
        """A revision and its files. revision: a branch, a tag, a commit or the start of one."""
        return self._api.get_revision(name, revision)

    def refs(self, name: str) -> Sequence[Ref]:
        """Branches and tags."""
        return self._api.list_refs(name)

    def info(self, name: str, revision: str = "main", *, brief: bool = False) -> dict[str, Any]:
        """How the hub stores a revision: its files, tensors, bytes and bases, as parsed JSON.

        brief: without the tensors, which is faster.
        """
        return self._api.get_info(name, revision, brief=brief)

    def whoami(self) -> WhoAmI:
        return self._api.whoami()

    def job(self, job_id: str) -> Job:
        return self._api.get_job(job_id)

    def wait_for_job(self, job_id: str, *, progress: Progress | None = None) -> Job:
        """The job once it is done. JobFailed with the job's message if it does not succeed."""
        from deltahub.client.api.jobs import wait_for_job

        return wait_for_job(self._api, job_id, progress or Silent())

    def cancel_job(self, job_id: str) -> None:
        self._api.cancel_job(job_id)

    # -- repositories ----------------------------------------------------------------------

    def create(self, name: str, *, private: bool = False) -> Repository:
        """Create an empty repository."""
        return self._api.create_repository(name, private=private)

    def set_private(
        self, name: str, private: bool, *, progress: Progress | None = None
    ) -> Repository:
        """Make a repository private or public, with all its revisions.

        A repository becomes public once the hub has read all its files, and stays private until
        then. It becomes private once no model of others is stored as differences from it, and stays
        public until then: the hub stores those without it first. Raises Conflict while the hub
        still verifies a push to it, JobFailed.
        """
        found = self._api.set_private(name, private=private)
        if not isinstance(found, Withdrawal):
            return found
        self._wait_for_withdrawal(name, found, progress or Silent())
        return self._api.get_repository(name)

    def delete(self, name: str, *, progress: Progress | None = None) -> None:
        """Delete a repository with all its revisions.

        Models of others that are stored as differences from it are stored without it first. Raises
        JobFailed; then the repository stays.
        """
        waiting = self._api.delete_repository(name)
        if waiting is not None:
            self._wait_for_withdrawal(name, waiting, progress or Silent())

    def _wait_for_withdrawal(self, name: str, waiting: Withdrawal, progress: Progress) -> None:
        from deltahub.client.api.jobs import wait_for_job

        known = count_of(waiting.models, "model") if waiting.models else "data of others"
        verb = "is" if waiting.models < 2 else "are"
        progress.note(
            f"{known} stored as differences from {name} {verb} being stored without it first; until"
            " then it stays as it is"
        )
        # Another administrator's job cannot be seen any more after it has deleted the repository.
        with contextlib.suppress(JobNotFound):
            wait_for_job(self._api, waiting.job_id, progress)

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
