"""A real workload on one data folder, in processes that are killed.

Run as a module, it reads one JSON line per request, forks a child into a process group of its own,
and answers with one JSON line. A fork of a process that has imported everything starts in
milliseconds, so that hundreds of kills fit into a test.

request: {"number", "failpoint": str | null, "kill_after_s": float | null, "is_counted": bool}
answer: {"killed": bool, "status": int}

A counted round writes to the file `hits` how often it passed each failpoint.
"""

import contextlib
import errno
import gc
import json
import os
import select
import signal
import sys
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from deltahub.codecs.files.split import plan_file
from deltahub.registry import failpoints
from deltahub.registry.access import bootstrap
from deltahub.registry.access.caller import Caller
from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.catalog.lists.search import list_repositories
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.ingest import pipeline
from deltahub.registry.ingest.make_public import make_public
from deltahub.registry.ingest.pipeline import Ingest
from deltahub.registry.ingest.verify_recipe import verify_recipe
from deltahub.registry.jobs import queue
from deltahub.registry.maintenance.gc.apply import apply_gc
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.packs import switch
from deltahub.registry.reencode.recompress import apply_recompress, plan_recompress
from deltahub.registry.reencode.replan import Replanner
from deltahub.registry.reencode.triggers import after_ingest
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.storage.disk import Disk
from deltahub.registry.uploads.client_packs import accept_pack
from deltahub.registry.uploads.recipes import submit_recipe
from deltahub.registry.uploads.small_files import SmallFiles
from support.registry.opened import caller, ensure_repository, push, sha256_of, upload
from support.registry.xet import FileOf, TermOf, XorbOf, cut, send_shard, send_xorb
from support.service.client_door import pack_and_recipe

# Repositories older than this many rounds are deleted and collected.
ROUNDS_KEPT = 2
# Tensors that one transaction inserts: so few that a tiny model's pack needs several.
PART_TENSORS = 2
# Files of one ingest step: so few that a push needs several steps.
STEP_FILES = 2


@dataclass(frozen=True)
class Journal:
    """What was acknowledged: the children append one line per fact, which survives their death."""

    path: Path

    def add(self, **fact: object) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, json.dumps(fact).encode() + b"\n")
        os.close(fd)

    def acknowledged(self) -> dict[tuple[str, str], str]:
        """(repository, path) -> SHA-256 of files that must exist, without those being deleted."""
        files: dict[tuple[str, str], str] = {}
        for line in self.path.read_text().splitlines():
            fact = json.loads(line)
            if "deleting" in fact:
                files = {key: sha for key, sha in files.items() if key[0] != fact["deleting"]}
            else:
                files[fact["repository"], fact["path"]] = fact["sha256"]
        return files


def run_jobs(reg: Registry) -> None:
    """Run every job that is queued or was interrupted, until none is left."""
    while True:
        with reg.db.read() as session:
            waiting = [*queue.running(session), *queue.next_queued(session)]
        if not waiting:
            return
        for job in waiting:
            with reg.db.write() as session:
                queue.mark_running(session, job.id)
            if job.kind == "prove_recipe":
                verify_recipe(reg, FileReader(reg), job.id, job.payload)
            elif job.kind == "ingest":
                Ingest(reg, FileReader(reg), job.payload["revision_id"], job.id).run()
                after_ingest(reg, FileReader(reg), job.payload["revision_id"])
            else:
                position: int | None = 0
                while position is not None:
                    planner = Replanner(reg, FileReader(reg), job.payload["revision_id"])
                    position = planner.step(position).next_position
            with reg.db.write() as session:
                queue.mark_done(session, job.id, {})


def _recompress(reg: Registry) -> None:
    reader = FileReader(reg)
    apply_recompress(reg, reader, plan_recompress(reg, reader))


def round_of_work(data_dir: Path, models: Path, journal: Journal, number: int) -> None:
    """Push a fine-tune, then its base, and as clients of both kinds; ingest, re-plan, recompress,
    make a repository public, delete old repositories, collect garbage.
    """
    family = number % len(list(models.glob("*.base")))
    base = (models / f"{family}.base").read_bytes()
    tuned = (models / f"{family}.tuned").read_bytes()
    sent = _of_its_own((models / f"{family}.sent").read_bytes(), number)
    # Effort fast, because a higher effort would not make a kill harder to survive.
    with Registry.open(Settings(data_dir=data_dir, codec_effort="fast")) as reg:
        who = caller(reg, "alice", scope="write")
        run_jobs(reg)
        _push(reg, who, journal, f"alice/tuned-{number}", tuned, base=f"alice/base-{number}")
        run_jobs(reg)
        _push(reg, who, journal, f"alice/base-{number}", base)
        run_jobs(reg)
        _send(reg, who, journal, f"alice/sent-{number}", sent, base)
        _recompress(reg)  # of a revision: the frames that the client sent
        _send_by_xet(reg, who, journal, f"alice/xet-{number}", _xorb(number))
        make_public(reg, FileReader(reg), who, f"alice/sent-{number}")
        run_jobs(reg)
        _recompress(reg)  # of no revision: the private frames from before make_public
        for repository in list_repositories(reg, who, namespace="alice", limit=1000).items:
            if int(repository.name.rsplit("-", 1)[1]) <= number - ROUNDS_KEPT:
                journal.add(deleting=repository.name)
                delete_repository(reg, who, repository.name)
        collect_all(reg)
    with Registry.open(Settings(data_dir=data_dir, upload_ttl_s=0), _TwoFileSystems()) as reg:
        _push(reg, who, journal, f"alice/apart-{number}", _of_its_own(tuned, number))
        run_jobs(reg)
        upload(reg, who, f"never committed {number}".encode())
        ensure_repository(reg, who, f"alice/xet-{number}")
        send_xorb(reg, f"alice/xet-{number}", _xorb(-number))
        collect_all(reg)


class _TwoFileSystems(Disk):
    """Renames into `objects` fail as if their source were on another disk, so the store copies."""

    def rename(self, source: Path, target: Path) -> None:
        if "objects" in target.parts and "objects" not in source.parts:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        super().rename(source, target)


def _of_its_own(data: bytes, number: int) -> bytes:
    """The model with another first word in each tensor, so that no earlier round has stored any."""
    changed = bytearray(data)
    plan = plan_file(lambda start, n: data[start : start + n], len(data), "m.safetensors")
    for piece in plan.tensor_pieces():
        changed[piece.start : piece.start + 2] = number.to_bytes(2, "little")
    return bytes(changed)


def collect_all(reg: Registry) -> None:
    """Collect all garbage if no other process uses the folder: first condemn, then delete."""
    for _ in range(2):
        apply_gc(reg, plan_gc(reg, lease_s=0, grace_s=0))


def _push(
    reg: Registry, who: Caller, journal: Journal, name: str, data: bytes, base: str | None = None
) -> None:
    files = {"model.safetensors": data, "config.json": f'{{"name": "{name}"}}'.encode()}
    push(reg, who, name, files, base=base)
    together = {f"{i}.txt": f"{name}, file {i}".encode() for i in range(3)}
    small = SmallFiles(reg, who)
    adds = [AddFile(path, small.add(content), len(content)) for path, content in together.items()]
    small.flush()
    commit(reg, who, name, "main", adds, base=base)
    files |= together
    for path, content in files.items():
        journal.add(repository=name, path=path, sha256=sha256_of(content))


def _send(
    reg: Registry, who: Caller, journal: Journal, name: str, data: bytes, base: bytes
) -> None:
    """Push like the DeltaHub client: a pack of deltas and a recipe instead of the file."""
    pack, recipe = pack_and_recipe(data, base)
    ensure_repository(reg, who, name, private=True)
    accept_pack(reg, FileReader(reg), who, name, upload(reg, who, pack))
    submit_recipe(reg, who, name, recipe)
    run_jobs(reg)
    commit(reg, who, name, "main", [AddFile("model.safetensors", sha256_of(data), len(data))])
    journal.add(repository=name, path="model.safetensors", sha256=sha256_of(data))


def _xorb(number: int) -> XorbOf:
    return XorbOf(cut(f"chunk of {number};".encode() * 500, 2000), scheme=1)


def _send_by_xet(reg: Registry, who: Caller, journal: Journal, name: str, xorb: XorbOf) -> None:
    """Push by Xet, like a Hugging Face client."""
    ensure_repository(reg, who, name)
    send_xorb(reg, name, xorb)
    file = FileOf([TermOf(xorb, 1), TermOf(xorb, 0, 2)])
    send_shard(reg, who, name, [file])
    commit(reg, who, name, "main", [AddFile("a.bin", file.digest, len(file.data))])
    journal.add(repository=name, path="a.bin", sha256=file.digest)


class _Counting:
    """Replaces the trigger: it counts each failpoint whose name it is compared with."""

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()
        self.name = self

    def __eq__(self, name: object) -> bool:
        self.hits[str(name)] += 1
        return False


def _child(folder: Path, request: dict[str, object]) -> None:
    os.setpgid(0, 0)
    os.environ["DELTAHUB_FAILPOINT_GROUP"] = "1"
    counting = _Counting()
    if request["is_counted"]:
        failpoints._trigger = counting  # type: ignore[assignment]  # duck-typed
    elif request["failpoint"]:
        failpoints._trigger = failpoints._Trigger(str(request["failpoint"]))
    try:
        number = request["number"]
        assert isinstance(number, int)
        journal = Journal(folder / "journal")
        round_of_work(folder / "data", folder / "models", journal, number)
        if request["is_counted"]:
            (folder / "hits").write_text(json.dumps(counting.hits))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    folder = Path(sys.argv[1])
    switch.PART_TENSORS = PART_TENSORS
    pipeline.STEP_FILES = STEP_FILES  # type: ignore[misc]  # Final
    with Registry.open(Settings(data_dir=folder / "data")) as reg:
        bootstrap.bootstrap_admin(reg)
        caller(reg, "alice")
    gc.freeze()  # the children share these pages as long as no collection writes to them
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(folder, request)
        with contextlib.suppress(PermissionError, ProcessLookupError):  # the child was first
            os.setpgid(pid, pid)
        if request["kill_after_s"] is not None:
            fd = os.pidfd_open(pid)
            is_over, _, _ = select.select([fd], [], [], request["kill_after_s"])
            os.close(fd)
            if not is_over:
                os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print(json.dumps({"killed": killed, "status": status}), flush=True)


if __name__ == "__main__":
    main()
