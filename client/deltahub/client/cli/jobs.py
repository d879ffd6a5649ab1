"""`deltahub jobs`: the hub's background jobs."""

import json

import click

from deltahub.client.cli.asking.command import result_lines, tell_result
from deltahub.client.cli.output import Output, hub_options, table
from deltahub.client.hub import Hub
from deltahub.client.records import Job, JobProgress


@click.group()
def jobs() -> None:
    """List, show, watch, cancel and retry background jobs."""


@jobs.command()
@click.option(
    "--state", type=click.Choice(["queued", "running", "done", "failed", "cancelled"]),
    help="Only jobs in this state.",
)  # fmt: skip
@click.option("--kind", help="Only jobs of this kind, such as merge.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="How many at most.")
@hub_options
def ls(state: str | None, kind: str | None, limit: int, hub: Hub, output: Output) -> None:
    """List your jobs, the newest first; administrators see all."""
    found = hub.jobs(state=state, kind=kind, limit=limit)
    rows = [
        [job.id, job.kind, job.state, _done(job), job.repository or "", job.created_at or ""]
        for job in found
    ]
    output.result({"items": found}, *(table(rows) if rows else ["no jobs"]))


@jobs.command()
@click.argument("job_id", metavar="JOB")
@hub_options
def show(job_id: str, hub: Hub, output: Output) -> None:
    """Show a job: its state, what it was asked for, its log and its result."""
    running = hub.running_job(job_id)
    lines = running.new_lines()
    job = running.job
    rows = [
        ["job", job.id],
        ["kind", job.kind],
        ["state", f"{job.state} {_done(job)}".strip()],
        *([["waits for", job.waits_for]] if job.waits_for else []),
        *([["error", job.error.message]] if job.error else []),
        *([[name, _plain(value)] for name, value in (job.arguments or {}).items()
           if value is not None]),
    ]  # fmt: skip
    told = [line.text for line in lines]
    output.result({"job": job, "log": lines}, *table(rows), *told, *result_lines(job.result or {}))


@jobs.command()
@click.argument("job_id", metavar="JOB")
@hub_options
def watch(job_id: str, hub: Hub, output: Output) -> None:
    """Follow a job until it is over; exit status 1 if it does not end well."""
    tell_result(hub, hub.running_job(job_id).wait(progress=output.progress()), output)


@jobs.command()
@click.argument("job_id", metavar="JOB")
@hub_options
def cancel(job_id: str, hub: Hub, output: Output) -> None:
    """Stop a job. What it has published stays, and nothing is left half made."""
    job = hub.running_job(job_id).cancel()
    is_asked = "was asked to stop" if job.state == "running" else f"is {job.state}"
    output.result(job, f"job {job.id} {is_asked}")


@jobs.command()
@click.argument("job_id", metavar="JOB")
@hub_options
def retry(job_id: str, hub: Hub, output: Output) -> None:
    """Run a job again, from its beginning, that failed or was cancelled."""
    job = hub.running_job(job_id).retry()
    output.result(job, f"job {job.id} is {job.state}")


def _plain(value: object) -> str:
    """A value of an argument as a person writes it."""
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return json.dumps(value) if isinstance(value, bool | dict) else str(value)


def _done(job: Job) -> str:
    """How far a running job is."""
    from deltahub.client.api.parsing import record

    if job.state != "running" or job.progress is None:
        return ""
    progress = record(JobProgress, job.progress)
    return progress.sentence(progress.stage or "")
