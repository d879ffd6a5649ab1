"""Makes repositories private or deletes them like a server and its worker."""

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Job
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.jobs import queue
from deltahub.registry.jobs.progress import Progress
from deltahub.registry.reencode.withdraw import Change, Withdrawal, Withdrawing, withdraw

SILENT = Progress(lambda stage, done, total: None, lambda: None)


def withdraw_now(reg: Registry, who: Caller, name: str, change: Change) -> Withdrawal | None:
    """Ask for the change and run its job, if it needs one."""
    asked = withdraw(reg, who, name, change)
    if asked is not None:
        run_withdrawal(reg, asked.job_id)
    return asked


def run_withdrawal(reg: Registry, job_id: str) -> int:
    """Run the job as a worker does; returns the number of switched tensors."""
    with reg.db.write() as session:
        assert queue.mark_running(session, job_id)
        payload = session.get_one(Job, job_id).payload
    work = Withdrawing(reg, FileReader(reg), job_id, payload["change"], payload["scope"])
    switched = 0
    while True:
        step = work.step(SILENT)
        switched += step.switched
        if step.is_last:
            break
    with reg.db.write() as session:
        assert queue.mark_done(session, job_id, {})
    return switched
