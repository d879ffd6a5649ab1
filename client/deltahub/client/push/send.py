"""Sends the files of a push, whole or as frames of the tensors that the hub lacks."""

import os
from collections.abc import Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from deltahub.client.api.endpoints import Api
from deltahub.client.api.jobs import wait_for_job
from deltahub.client.errors import JobFailed
from deltahub.client.local.hashing import index_snapshot
from deltahub.client.local.index import LocalIndex
from deltahub.client.local.kept_pushes import KeptPushes, PushedWeights
from deltahub.client.local.tensor_sources import MissingTensor, Sources
from deltahub.client.names import named_revision
from deltahub.client.progress import Progress, Silent
from deltahub.client.push.base import BaseSet, load_base
from deltahub.client.push.packs import PackSender, Refusal, spool_folder
from deltahub.client.push.plan import HashedFile, PushPlan, plan_push
from deltahub.client.push.upload import Uploader, together
from deltahub.client.records import Revision
from deltahub.codecs.files.split import make_recipe

_UPLOADERS = 4
NO_BASE = "none"


@dataclass(frozen=True)
class PushOptions:
    """The options of a push. base: `namespace/name[@revision]`, or NO_BASE to declare none.

    parent: the (repository, revision) that find_parent found; a hint, not declared. step: (its
    number, the step that it follows), to make the commit a step of a run.
    """

    name: str
    revision: str = "main"
    base: str | None = None
    message: str | None = None
    mirror: bool = False
    wait: bool = True
    private: bool | None = None
    parent: tuple[str, str] | None = None
    step: tuple[int, int | None] | None = None


class FileSender:
    """Sends the files of one push. Bytes that the hub has are not sent again."""

    def __init__(
        self, api: Api, index: LocalIndex, progress: Progress, options: PushOptions
    ) -> None:
        self._api = api
        self._index = index
        self._progress = progress
        self._options = options
        self._uploader = Uploader(api)
        self._sources = Sources(index)
        self._kept = KeptPushes(index, api.transport.url, options.name, options.revision)
        self._recipe_bytes = 0

    @property
    def sent(self) -> int:
        """Bytes of the bodies of uploads and recipes."""
        return self._uploader.sent + self._recipe_bytes

    def close(self) -> None:
        self._sources.close()

    def send(self, files: list[HashedFile], head: Revision | None, base: Revision | None) -> None:
        """Sends the files, the cheaper way for each. base: the declared one."""
        plan, have = self._plan(files, head, base)
        self.upload(plan.whole)
        if not plan.frames:
            return
        try:
            self._send_frames(plan, have)
        except (*Refusal, JobFailed) as exc:
            self._progress.note(f"sending whole files: the hub refuses the difference ({exc})")
            self.upload(plan.frames)
        except MissingTensor:
            self._progress.note("sending whole files: a base was deleted from this machine")
            self.upload(plan.frames)

    def keep(self, files: Sequence[HashedFile], head: Revision | None) -> None:
        """Keeps copies of the pushed weights for the next push. head: the revision before."""
        weights = [
            PushedWeights(each.file.source, each.file.stamp, each.sha256)
            for each in files
            if each.tensors
        ]
        entries = () if head is None or self._options.mirror else head.entries
        pushed = {each.file.path for each in files}
        others = {entry.sha256 for entry in entries if entry.path not in pushed}
        total = self._kept.to_copy(weights)
        progress = self._progress if total else Silent()
        with progress.stage("keep a copy for the next push", total) as stage:
            try:
                problems = self._kept.keep(weights, others, stage.advance)
            except OSError as exc:  # of the cache folder; the push itself is done
                problems = [str(exc)]
        for problem in problems:
            self._progress.note(f"the next push cannot send the step from this one: {problem}")

    def _plan(
        self, files: list[HashedFile], head: Revision | None, base: Revision | None
    ) -> tuple[PushPlan, Set[str]]:
        tensors = {t.tensor.hex(): t.size for each in files for t in each.tensors}
        if not tensors:
            return plan_push(files, set(), (), self._sources), set()
        with self._progress.stage("compare with the hub", None):
            held = self._api.query_tensors(self._options.name, tensors)
            is_any_missing = len(held) < len(tensors)
            bases = self._bases(head, base) if is_any_missing else []
            return plan_push(files, held, bases, self._sources), held

    def _bases(self, head: Revision | None, base: Revision | None) -> list[BaseSet]:
        """The bases to try: declared, loaded from, the branch's own head. Only what is here."""
        options = self._options
        wanted: list[tuple[str, Revision]] = []
        if options.base is not None and base is not None:
            wanted.append((parse_base(options.base)[0], base))
        if options.parent is not None:
            found = self._api.find_revision(*options.parent)
            if found is not None and all(found.commit != each.commit for _, each in wanted):
                wanted.append((options.parent[0], found))
        if head is not None:
            wanted.append((options.name, head))
        self._kept.index_files()
        for name, revision in wanted:
            index_snapshot(name, revision.commit, self._index)
        bases = [load_base(self._api, self._sources, *each) for each in wanted]
        # A base counts only if the hub would resolve it for this repository.
        sizes = {tensor: size for base in bases for tensor, size in base.sizes().items()}
        known = self._api.query_tensors(options.name, sizes) if sizes else set()
        return [each for each in (base.only(known) for base in bases) if len(each)]

    def upload(self, files: Iterable[HashedFile]) -> None:
        """Sends whole files, each from where its earlier upload ended."""
        todo = list(files)
        total = sum(each.file.size for each in todo)
        if not todo:
            return
        with self._progress.stage("upload", total) as stage, ThreadPoolExecutor(_UPLOADERS) as pool:

            def upload(some: list[HashedFile]) -> None:
                self._uploader.upload_all(some, stage.advance)

            list(pool.map(upload, together(todo)))

    def _send_frames(self, plan: PushPlan, have: Set[str]) -> None:
        name = self._options.name
        choices = plan.choices
        with spool_folder(self._api.transport.url, name) as folder:
            sender = PackSender(self._api, self._uploader, name, folder)
            missing = {choice.tensor.tensor: choice.tensor.size for choice in choices}
            spooled = sender.spooled(missing)
            if spooled:
                size = sum(path.stat().st_size for path in spooled)
                with self._progress.stage("send what was coded before", size) as stage:
                    sender.resume(spooled, missing, stage.advance)
                sizes = {tensor.hex(): size for tensor, size in missing.items()}
                have = have | self._api.query_tensors(name, sizes)
                choices = [each for each in choices if each.tensor.tensor.hex() not in have]
            total = sum(choice.tensor.size for choice in choices)
            if choices:
                has_bases = any(choice.base is not None for choice in choices)
                title = "send differences" if has_bases else "send tensors"
                with self._progress.stage(title, total) as stage:
                    sender.send(choices, self._sources, stage.advance)
        jobs = [self._put_recipe(each) for each in plan.frames]
        for job_id in jobs:
            if job_id is not None:
                wait_for_job(self._api, job_id, self._progress)

    def _put_recipe(self, each: HashedFile) -> str | None:
        assert each.plan is not None
        ids = [tensor.tensor for tensor in each.tensors]
        fd = os.open(each.file.source, os.O_RDONLY)
        try:
            recipe = make_recipe(
                each.plan, bytes.fromhex(each.sha256), ids, lambda at, n: os.pread(fd, n, at)
            ).to_bytes()
        finally:
            os.close(fd)
        self._recipe_bytes += len(recipe)
        return self._api.put_recipe(self._options.name, recipe)


def parse_base(base: str) -> tuple[str, str]:
    """(`namespace/name`, revision) of a declared base."""
    name, revision = named_revision(base)
    return name, revision or "main"
