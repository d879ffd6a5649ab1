"""Makes a model private or deletes it, and waits until a job has stored other models without it."""

from functools import partial
from typing import Final

import anyio
import anyio.to_thread
from fastapi import Request

from deltahub.registry.access.caller import Caller
from deltahub.registry.errors import JobNotFound
from deltahub.registry.jobs.requests import error_of, get_job
from deltahub.registry.reencode.withdraw import Change, withdraw
from deltahub.server.hub import Hub

# Seconds between two looks at the job.
_FIRST_POLL_S: Final = 0.05
_LONGEST_POLL_S: Final = 1.0


async def withdraw_and_wait(
    hub: Hub, request: Request, caller: Caller | None, name: str, change: Change
) -> None:
    """Return when the change is done, or when the client has left: then the job goes on.

    It raises the job's error. No thread waits, because the job may take long.
    """
    waiting = await hub.change(caller, partial(withdraw, hub.registry, caller, name, change))
    pause = _FIRST_POLL_S
    while waiting is not None and not await request.is_disconnected():
        try:
            job = await anyio.to_thread.run_sync(get_job, hub.registry, caller, waiting.job_id)
        except JobNotFound:
            return  # another administrator's job, which has deleted the model
        error = error_of(job)
        if error is not None:
            raise error
        if job.state == "done":
            return
        await anyio.sleep(pause)
        pause = min(2 * pause, _LONGEST_POLL_S)
