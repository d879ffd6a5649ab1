"""Push: sends the bytes that the hub lacks of a folder's files, then commits the files."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from deltahub.client.api.endpoints import Api
from deltahub.client.api.jobs import wait_for_job
from deltahub.client.errors import (
    InvalidArgument,
    JobNotFound,
    RefMoved,
    RepositoryExists,
    RepositoryNotFound,
    UploadNotFound,
)
from deltahub.client.local.folder import LocalFile
from deltahub.client.local.hashing import plan_of, sha256_of, tensors_of
from deltahub.client.local.index import LocalIndex
from deltahub.client.names import branch_name, file_path
from deltahub.client.progress import Progress, Silent, count_of, human_size
from deltahub.client.push.encode import LocalTensor
from deltahub.client.push.plan import SMALL_FILE, HashedFile
from deltahub.client.push.send import NO_BASE, FileSender, PushOptions, parse_base
from deltahub.client.records import CommitResult, PushResult, Repository, Revision, WhoAmI
from deltahub.codecs.files.lfs_pointer import MAX_POINTER_BYTES, pointed_size

_COMMIT_TRIES = 5


class Push:
    """One push. Safe to repeat at any time: bytes that the hub has are not sent again."""

    def __init__(
        self, api: Api, index: LocalIndex, progress: Progress, options: PushOptions
    ) -> None:
        self._api = api
        self._index = index
        self._progress = progress
        self._options = options
        self._has_branch = False
        self._sender = FileSender(api, index, progress, options)

    def run(self, files: Sequence[LocalFile]) -> PushResult:
        try:
            with self._api.transport.reporting_waits(self._progress.note):
                return self._run(files)
        finally:
            self._sender.close()

    def _run(self, files: Sequence[LocalFile]) -> PushResult:
        options = self._options
        branch_name(options.revision)
        for file in files:
            file_path(file.path)
        self._check_base()
        exists = self._exists(files)
        options = self._options
        if exists:
            self._refuse_tag()
        self._warn_of_pointers(files)
        base = self._find_base()  # after what is refused, because it may warn
        hashed = self._hash(files)
        if not exists:
            sizes = {each.sha256: each.file.size for each in hashed}
            self._create(sum(sizes.values()))
        missing = self._unsent(hashed)
        head = self._head()  # after the query, which makes the hub look for lost files
        if missing:
            self._sender.send(missing, head, base)
        result, added, deleted = self._commit(hashed, head)
        self._sender.keep(hashed, head)
        if not result.changed:  # another push made the same commit meanwhile
            added = deleted = ()
        return PushResult(
            repository=options.name,
            revision=options.revision,
            commit=result.commit,
            changed=result.changed,
            state=self._final_state(result),
            added=added,
            deleted=deleted,
            unchanged=len(hashed) - len(added),
            size=sum(each.file.size for each in hashed),
            sent=self._sender.sent,
            job_id=result.job_id,
            url=f"{self._api.transport.url}/v1/repositories/{options.name}",
            base=None if options.base == NO_BASE else options.base,
            base_state=_base_state(options, base),
        )

    def _warn_of_pointers(self, files: Sequence[LocalFile]) -> None:
        """Warn of Git LFS pointers, which a clone without git-lfs has in place of its weights."""
        pointers = []
        for file in files:
            if 0 < file.size <= MAX_POINTER_BYTES:
                with file.source.open("rb") as source:
                    size = pointed_size(source.read(MAX_POINTER_BYTES + 1))
                if size is not None:
                    pointers.append((file.path, size))
        if pointers:
            path, size = pointers[0]
            others = f" and {len(pointers) - 1} more files" if len(pointers) > 1 else ""
            self._progress.note(
                f"warning: {path}{others}: a Git LFS pointer, not the file of {human_size(size)}"
                " that it stands for: nothing can load what is pushed now. Run `git lfs pull` in"
                " the folder and push again"
            )

    def _check_base(self) -> None:
        """InvalidArgument if the declared base is no name, or the model itself."""
        base = self._options.base
        if base is None or base == NO_BASE:
            return
        if parse_base(base) == (self._options.name, self._options.revision):
            raise InvalidArgument(
                f"{base} would be its own base: name another model, or an older commit of this one "
                f"as {self._options.name}@COMMIT"
            )

    def _find_base(self) -> Revision | None:
        """The declared base's revision, or None. Warns if the hub has none that the caller may
        read, because a misspelt name looks the same; and if the base has no safetensors file.
        """
        base = self._options.base
        if base is None or base == NO_BASE:
            return None
        found = self._api.find_revision(*parse_base(base))
        if found is None:
            self._progress.note(
                f"warning: there is no {base} that you may read here: it is declared as the base "
                "all the same, and used once it arrives; another --base changes it, "
                f"--base {NO_BASE} takes it away"
            )
        elif not _has_safetensors(found):
            self._progress.note(
                f"warning: {base} has no safetensors file here, and differences are made from those"
                " alone: it is declared as the base, and used once one arrives"
            )
        return found

    def _unsent(self, files: Iterable[HashedFile]) -> list[HashedFile]:
        """The files that the hub does not have, and that must be sent.

        Unchanged files are asked for, too, because the hub may have lost them.
        """
        queried = {each.sha256: each for each in files}
        sizes = {sha256: each.file.size for sha256, each in queried.items()}
        known = self._api.query_files(self._options.name, sizes)
        return [each for sha256, each in queried.items() if sha256 not in known]

    def _head(self) -> Revision | None:
        """The branch's revision. A branch that does not exist yet begins at main's."""
        options = self._options
        found = self._api.find_revision(options.name, options.revision)
        self._has_branch = found is not None
        if found is None and options.revision != "main":
            found = self._api.find_revision(options.name, "main")
        return found

    def _exists(self, files: Sequence[LocalFile]) -> bool:
        """Whether the repository exists. Forbidden, before any file is read, if the caller may not
        push to it or create it.
        """
        try:
            found = self._api.get_repository(self._options.name)
        except RepositoryNotFound:
            if not files:
                raise  # a push without files can only delete
            if may_create(self._api.whoami(), self._options.name):
                return False  # created late, so that a failed push leaves no empty repository
            self._create()  # raises the hub's own reason
            return True
        self._check_visibility(found)
        if found.name != self._options.name:
            self._progress.note(f"{self._options.name} is called {found.name} on the hub")
            self._options = replace(self._options, name=found.name)
            self._sender.close()
            self._sender = FileSender(self._api, self._index, self._progress, self._options)
        self._api.require_write(found.name)
        return True

    def _create(self, push_bytes: int = 0) -> None:
        """push_bytes: of the files that come; LimitExceeded, and no repository, if too much."""
        options = self._options
        is_private = bool(options.private)
        try:
            self._api.create_repository(options.name, private=is_private, push_bytes=push_bytes)
        except RepositoryExists:
            # Another push has created it meanwhile.
            self._check_visibility(self._api.get_repository(options.name))

    def _check_visibility(self, found: Repository) -> None:
        """InvalidArgument if the repository has another visibility than options.private."""
        options = self._options
        if options.private is not None and options.private != found.private:
            kind, wanted = ("public", "private") if options.private else ("private", "public")
            raise InvalidArgument(
                f"{options.name} exists and is {kind}, which no push changes: "
                f"`deltahub visibility {options.name} {wanted}` does, for all its revisions"
            )

    def _refuse_tag(self) -> None:
        """InvalidArgument for a push to a tag, before anything is sent in vain."""
        options = self._options
        if options.revision == "main":
            return
        for ref in self._api.list_refs(options.name):
            if (ref.kind, ref.name) == ("tag", options.revision):
                raise InvalidArgument(
                    f"{ref.name} is a tag of {options.name}, which stays where it is: push to a"
                    " branch"
                )

    def _hash(self, files: Sequence[LocalFile]) -> list[HashedFile]:
        """Hashes all files. SHA-256 and tensors of one file are hashed in parallel."""
        index = self._index
        total = sum(file.size for file in files if not index.sha256_of(file.source, file.stamp))
        workers = max(2, os.cpu_count() or 1)
        progress = self._progress if total else Silent()  # no file is read if all hashes are known
        with (
            progress.stage("hash", total) as stage,
            ThreadPoolExecutor(workers) as pool,
        ):

            def digest(file: LocalFile) -> str:
                return sha256_of(file.source, file.stamp, self._index, stage.advance)

            digests = [pool.submit(digest, file) for file in files]
            plans = [pool.submit(self._plan_file, file) for file in files]
            try:
                return [
                    HashedFile(file, digests[i].result(), *plans[i].result())
                    for i, file in enumerate(files)
                ]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _plan_file(self, file: LocalFile) -> tuple[Any, tuple[LocalTensor, ...]]:
        if not file.path.endswith(".safetensors"):
            return None, ()
        plan = plan_of(file.source, file.stamp, file.path)
        if plan.kind != "safetensors":
            self._progress.note(
                f"warning: {file.path} is not a whole safetensors file: {plan.note}. "
                "It is kept as it is, and not as a difference"
            )
            return None, ()
        if file.size < SMALL_FILE:
            return None, ()
        placed = tensors_of(file.source, file.stamp, plan, self._index)
        return plan, tuple(
            LocalTensor(each.tensor, file.source, piece)
            for each, piece in zip(placed, plan.tensor_pieces(), strict=True)
        )

    # -- committing ------------------------------------------------------------------------

    def _commit(
        self, files: list[HashedFile], head: Revision | None
    ) -> tuple[CommitResult, tuple[str, ...], tuple[str, ...]]:
        """Commits; the result and the paths that it added and deleted.

        If another commit came first, commits on top of it. A mirror fails instead (RefMoved),
        because it would delete files that it has not seen. Files that the hub had at the query
        but has no more are sent.
        """
        options = self._options
        for attempt in range(1, _COMMIT_TRIES + 1):
            # The hub compares all files of a step with those of an earlier push of it.
            since = head if options.step is None else None
            operations = _operations(files, since, is_mirror=options.mirror)
            added = tuple(each["path"] for each in operations if each["op"] == "add")
            deleted = tuple(each["path"] for each in operations if each["op"] == "delete")
            wanted = None if options.base == NO_BASE else options.base
            is_same_base = options.base is None or (head and head.base.declared == wanted)
            is_same = not operations and is_same_base and self._has_branch
            if head is not None and is_same and not self._has_unfinished_work(head):
                return CommitResult(head.commit, head.job_id, changed=False), added, deleted
            try:
                result = self._api.commit(
                    options.name,
                    ref=options.revision,
                    message=options.message or _title(len(added), len(deleted)),
                    parent=head.commit if head and options.step is None else None,
                    base=options.base,
                    operations=operations,
                    step=options.step,
                )
            except RefMoved:
                if options.mirror or options.step is not None or attempt == _COMMIT_TRIES:
                    raise
                head = self._head()
                continue
            except UploadNotFound:
                if attempt == _COMMIT_TRIES:
                    raise
                self._sender.upload(self._unsent(files))
                continue
            return result, added, deleted
        raise AssertionError("unreachable: the last try returns or raises")

    def _has_unfinished_work(self, head: Revision) -> bool:
        """Whether the hub has to be asked to ingest the revision, because an ingest failed.

        A commit without changes asks for that.
        """
        if head.job_id is None:
            return False
        try:
            job = self._api.get_job(head.job_id)
        except JobNotFound:  # of another user's commit
            return any(entry.state != "ingested" for entry in head.entries)
        return job.state != "done"

    def _final_state(self, result: CommitResult) -> str:
        """The push's state: waits until the hub has verified everything, if options.wait."""
        options = self._options
        if result.job_id is None:
            return "proved"
        if not options.wait:
            return "committed"
        try:
            wait_for_job(self._api, result.job_id, self._progress)
        except JobNotFound:
            # Another user's commit has this content; the caller may not see its job.
            found = self._api.get_revision(options.name, result.commit)
            is_done = all(entry.state == "ingested" for entry in found.entries)
            return "proved" if is_done else "committed"
        return "proved"


def may_create(who: WhoAmI, name: str) -> bool:
    """Whether the caller's roles allow it to create the repository. The hub decides."""
    if who.is_admin and who.scope == "admin":
        return True
    namespace = name.partition("/")[0]
    roles = {each.name: each.role for each in who.namespaces}
    return who.scope != "read" and roles.get(namespace) in ("write", "admin")


def _base_state(options: PushOptions, found: Revision | None) -> str | None:
    if options.base in (None, NO_BASE):
        return None
    if found is None:
        return "absent"
    return "resolved" if _has_safetensors(found) else "no_safetensors"


def _has_safetensors(revision: Revision) -> bool:
    return any(entry.path.endswith(".safetensors") for entry in revision.entries)


def _changed(files: Iterable[HashedFile], head: Revision | None) -> list[HashedFile]:
    """The files that the head lacks, has otherwise, or has lost."""
    entries = head.entries if head else ()
    known = {entry.path: entry.sha256 for entry in entries if entry.state != "lost"}
    return [each for each in files if known.get(each.file.path) != each.sha256]


def _title(n_added: int, n_deleted: int) -> str:
    """The message of a push without one."""
    parts = [f"Push {count_of(n_added, 'file')}"] if n_added else []
    parts += [f"delete {count_of(n_deleted, 'file')}"] if n_deleted else []
    title = ", ".join(parts) or "Push without changed files"
    return title[0].upper() + title[1:]


def _operations(
    files: list[HashedFile], head: Revision | None, *, is_mirror: bool
) -> list[dict[str, Any]]:
    operations: list[dict[str, Any]] = [
        {"op": "add", "path": each.file.path, "sha256": each.sha256, "size": each.file.size}
        for each in _changed(files, head)
    ]
    if is_mirror and head is not None:
        ours = {each.file.path for each in files}
        gone = sorted(entry.path for entry in head.entries if entry.path not in ours)
        operations += [{"op": "delete", "path": path} for path in gone]
    return operations
