"""The job `scrub`: proves the objects whose turn it is, and repairs what is damaged.

payload: as deltahub.registry.maintenance.scrub.schedule writes it; result {"proved",
"proved_bytes", "found", "copies"}. What was found is in the table of findings. A step takes about
a second, so that other jobs wait no longer: one object that is larger is read in one step.
"""

from functools import partial
from typing import Any

from deltahub.registry.maintenance.scrub.pace import Pace
from deltahub.registry.maintenance.scrub.run import Scrub
from deltahub.registry.maintenance.scrub.schedule import Slice
from deltahub.workers.context import JobContext

# How long one step reads, in seconds, before other jobs may run.
STEP_S = 1.0


def scrub(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Prove objects step by step until the slice's bytes are read, then make second copies."""
    work = Slice.of_payload(payload)
    total = {"proved": 0, "proved_bytes": 0, "found": 0, "copies": 0}

    def begin() -> Scrub:
        pace = Pace(context.registry.settings.scrub_mb_per_s)
        return Scrub(context.registry, pace, check_stop=context.check_cancel)

    def prove(limit_bytes: int) -> dict[str, Any]:
        scrub = begin()
        done = scrub.run(work.before, limit_bytes=limit_bytes, limit_s=STEP_S)
        context.report("prove", work.limit_bytes - limit_bytes, work.limit_bytes)
        return _result(scrub) | {"read": scrub.n_read, "is_done": done.is_done}

    def copy() -> dict[str, Any]:
        scrub = begin()
        return {"is_done": scrub.make_copies(limit=1)} | _result(scrub)

    left, number, is_done = work.limit_bytes, 0, False
    while left > 0 and not is_done:
        step = context.step(f"prove {number}", partial(prove, left))
        number, left, is_done = number + 1, left - step["read"], step["is_done"] or not step["read"]
        _add(total, step)
    number, is_done = 0, not work.is_survey
    while not is_done:
        step = context.step(f"copy {number}", copy)
        number, is_done = number + 1, step["is_done"] or not step["copies"]
        _add(total, step)
    context.step("finish", lambda: begin().finish())
    return total


def _result(scrub: Scrub) -> dict[str, int]:
    done = scrub.done
    return {
        "proved": done.proved,
        "proved_bytes": done.proved_bytes,
        "found": done.n_found,
        "copies": done.restored.copies,
    }


def _add(total: dict[str, int], step: dict[str, Any]) -> None:
    for key in total:
        total[key] += step[key]
