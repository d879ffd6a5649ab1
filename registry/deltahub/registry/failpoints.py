"""Failpoints: places where a test kills the process, to show that a crash there loses no data.

DELTAHUB_FAILPOINT=<name> kills the process when it first reaches the failpoint; <name>:<n> when it
reaches the failpoint for the n-th time. DELTAHUB_FAILPOINT_GROUP=1 kills the whole process group
(server and worker).
"""

import os
import signal
import threading

# All names passed to reached(). The crash tests iterate over this list.
ALL = (
    "store.put.before_fsync",
    "store.put.after_fsync",
    "store.put.after_rename",
    "store.put_together.before_fsync",
    "store.put_together.after_fsync",
    "store.put_together.after_rename",
    "store.take_file.before_rename",
    "store.take_file.after_rename",
    "store.delete.after_unlink",
    "spool.append.before_fsync",
    "spool.append.after_fsync",
    "bucket_spool.part.after_send",
    "bucket_spool.tail.after_put",
    "bucket_spool.record.before_commit",
    "bucket_spool.record.after_commit",
    "bucket_spool.finish.before_object",
    "bucket_spool.finish.after_object",
    "landing.complete.before_store",
    "landing.complete.after_store",
    "landing.complete.after_row",
    "small_files.before_store",
    "small_files.after_store",
    "small_files.before_rows",
    "small_files.after_rows",
    "revisions.commit.before_commit",
    "revisions.commit.after_commit",
    "repositories.delete.before_commit",
    "publication.before_switch",
    "publication.before_commit",
    "publication.after_switch",
    "gc.upload.after_condemn",
    "gc.upload.after_delete",
    "gc.tensors.before_commit",
    "gc.tensors.after_commit",
    "gc.condemn.after_commit",
    "gc.pack.after_delete",
    "repack.before_put",
    "repack.after_put",
    "repack.before_commit",
    "repack.after_commit",
    "packs.put.before_row",
    "packs.put.before_put",
    "packs.put.after_put",
    "packs.put.after_proof",
    "ingest.scan.before_plan",
    "ingest.publish.before_commit",
    "ingest.publish.after_commit",
    "ingest.finish.before_commit",
    "ingest.finish.after_commit",
    "ingest.finish.after_delete",
    "accept.publish.between_parts",
    "accept.publish.before_commit",
    "accept.publish.after_commit",
    "prove.finish.before_commit",
    "prove.finish.after_commit",
    "replan.switch.before_commit",
    "replan.switch.after_commit",
    "withdraw.switch.before_commit",
    "withdraw.switch.after_commit",
    "withdraw.before_change",
    "withdraw.before_commit",
    "withdraw.after_commit",
    "recompress.replan.done",
    "recompress.switch.before_commit",
    "recompress.switch.after_commit",
    "arrivals.before_commit",
    "arrivals.after_commit",
    "landing.delete.before_rows",
    "xet.xorb.before_store",
    "xet.xorb.after_store",
    "xet.xorb.after_row",
    "xet.shard.before_ranges",
    "repair.packs.before_commit",
    "repair.packs.after_commit",
    "repair.tensors.before_commit",
    "repair.tensors.after_commit",
    "salvage.before_commit",
    "salvage.after_commit",
    "scrub.mark.before_commit",
    "scrub.mark.after_commit",
    "scrub.unmark.before_tensors",
    "copies.before_put",
    "copies.after_put",
    "copies.before_commit",
    "copies.after_commit",
    "copies.restored",
    "copies.pack_restored",
    "copies.after_condemn",
    "copies.after_delete",
    "gc.xorb.after_condemn",
    "gc.xorb.after_delete",
    "deferred.after_delete",
    "backup.after_hold",
    "backup.after_database",
    "backup.object.after_put",
    "backup.before_record",
    "backup.after_record",
    "backup.prune.before_objects",
    "restore.after_object",
    "restore.before_database",
    "restore.after_database",
    "move.begin.after_row",
    "move.begin.after_mark",
    "move.object.after_put",
    "move.object.after_proof",
    "move.switch.before_commit",
    "move.switch.after_commit",
    "move.finish.before_commit",
    "move.finish.after_commit",
    "move.delete.after_objects",
    "database_move.after_table",
    "database_move.before_commit",
    "database_move.after_commit",
)


class _Trigger:
    """The failpoint at which this process kills itself, with a countdown shared by all threads."""

    def __init__(self, value: str) -> None:
        self.name, _, count = value.partition(":")
        if self.name not in ALL:
            raise ValueError(f"DELTAHUB_FAILPOINT names no failpoint: {self.name!r}")
        self._left = int(count or 1)
        self._lock = threading.Lock()

    def hit(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left > 0:
                return
        if os.environ.get("DELTAHUB_FAILPOINT_GROUP") == "1":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


_trigger = (
    _Trigger(os.environ["DELTAHUB_FAILPOINT"]) if "DELTAHUB_FAILPOINT" in os.environ else None
)


def reached(name: str) -> None:
    """Kill the process if the environment names this failpoint; otherwise do nothing."""
    if _trigger is not None and _trigger.name == name:
        _trigger.hit()
