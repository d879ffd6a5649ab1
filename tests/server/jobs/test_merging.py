"""People ask for a merge by HTTP, SDK and command line, and load its branches with any client."""

import inspect
import json
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import click
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load_file

from deltahub.client import Hub, InvalidArgument
from deltahub.client.cli.commands import group
from deltahub.client.errors import JobFailed
from deltahub.methods.kinds.table import KINDS
from deltahub.methods.merging.report import MergeReport
from deltahub.registry.db.models import User, utc_now
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.jobs import queue
from deltahub.server.app import create_app
from deltahub.server.hub import WATCHES
from deltahub.server.schemas.jobs import AskIn, any_of
from support.merging.family import Family
from support.merging.running import PATH
from support.models import tiny_models as tiny
from support.service.client_process import deltahub


def ask(family: Family, token: str | None = None, **options: Any) -> Any:
    arguments = {"name": "ann/m", "base": "ann/base", "models": family.models}
    body = {"kind": "merge", "arguments": arguments | options.pop("arguments", {}), **options}
    return family.hub.call("POST", "/v1/jobs", token=token or family.token, body=body)


def test_a_merge_by_the_sdk_is_pulled_by_the_client_and_read_by_any_other(
    family: Family, tmp_path: Path
) -> None:
    job = family.ann.merge(family.models, base="ann/base", name="ann/sdk").wait()
    assert job.state == "done"
    assert job.result is not None
    report = MergeReport.model_validate(job.result["report"])
    assert [task.branch for task in report.tasks] == ["task0", "task1", "task2"]
    for number, task in enumerate(report.tasks):
        pulled = family.ann.pull("ann/sdk", revision=task.branch, to=tmp_path / task.branch)
        made = load_file(pulled / PATH)
        whole = family.hub.call("GET", f"/ann/sdk/resolve/{task.branch}/{PATH}")
        assert whole.status == 200
        assert whole.body == (pulled / PATH).read_bytes()
        part = family.hub.call(
            "GET", f"/ann/sdk/resolve/{task.branch}/{PATH}", headers={"Range": "bytes=5000-9000"}
        )
        assert (part.status, part.body) == (206, whole.body[5000:9001])
        error = sum(
            float(((made[name] - tensor).double() ** 2).sum())
            for name, tensor in tiny.task(number).items()
        )
        moved = sum(
            float(((tiny.base()[name] - tensor).double() ** 2).sum())
            for name, tensor in tiny.task(number).items()
        )
        assert (error / moved) ** 0.5 == pytest.approx(task.relative_error, rel=1e-3)
        assert task.relative_error < 1
        assert torch.equal(made["head.weight"], tiny.base()["head.weight"])
    main = family.hub.call("GET", "/ann/sdk/resolve/main/merge_report.json").json()
    assert MergeReport.model_validate(main) == report
    info = family.hub.call("GET", "/api/models/ann/sdk").json()
    assert "merge" in info["tags"]


def test_the_command_merges_shows_and_lists(family: Family) -> None:
    to_hub = {"DELTAHUB_URL": family.hub.url, "DELTAHUB_TOKEN": family.token}
    told = deltahub(
        "merge", "emr", "--base", "ann/base", *family.models, "--name", "ann/by-command",
        environment=to_hub,
    )  # fmt: skip
    assert told.status == 0, told.err
    assert "made ann/by-command@" in told.out
    assert "the 3 fine-tunes take" in told.err
    listed = deltahub("jobs", "ls", "--json", environment=to_hub).json()["items"]
    (job,) = [
        each for each in listed if (each["kind"], each["repository"]) == ("merge", "ann/by-command")
    ]
    shown = deltahub("jobs", "show", job["id"], environment=to_hub)
    assert "ann/by-command" in shown.out
    assert "the 3 fine-tunes take" in shown.out
    assert deltahub("jobs", "watch", job["id"], environment=to_hub).status == 0
    again = deltahub("jobs", "retry", job["id"], "--json", environment=to_hub)
    assert again.error()["code"] == "conflict"


def test_a_wrong_line_of_questions_is_named(family: Family, tmp_path: Path) -> None:
    to_hub = {"DELTAHUB_URL": family.hub.url, "DELTAHUB_TOKEN": family.token}
    questions = tmp_path / "questions.jsonl"
    compare = ("merge", "compare", "--base", "ann/base", *family.models, "--json")
    for line, fault in (("{", "line 2: no JSON"), ('{"input": "a"}', "expected: Field required")):
        questions.write_text(f'{{"input": "a", "expected": "b"}}\n{line}\n')
        told = deltahub(*compare, "--eval", str(questions), environment=to_hub)
        assert told.status == 2
        assert fault in told.error()["message"]


def test_a_dry_run_estimates_and_makes_nothing(family: Family) -> None:
    job = family.ann.merge(family.models, base="ann/base", name="ann/dry", dry_run=True).wait()
    assert job.result is not None
    estimate = job.result["estimate"]
    assert estimate["n_tasks"] == 3
    assert 0 < estimate["branches_bytes"] < estimate["main_bytes"]
    assert family.hub.call("GET", "/v1/repositories/ann/dry").status == 404


def test_a_failure_names_what_to_do(family: Family) -> None:
    running = family.ann.merge(["ann/task0", "ann/task0"], base="ann/base", name="ann/same")
    with pytest.raises(JobFailed, match=r"ann/task0@\w+ and ann/task0@\w+ have the same bytes"):
        running.wait()
    failed = running.refresh()
    assert failed.error is not None
    assert failed.error.code == "cannot_merge"
    assert running.retry().state == "queued"
    with pytest.raises(JobFailed):
        running.wait()


# Kinds whose command is part of a group.
COMMANDS = {
    "pissa_init": ("pissa", "init"),
    "convert_adapter": ("adapter", "convert"),
    "extract_adapter": ("adapter", "extract"),
    "export_neuzip": ("export", "neuzip"),
    "merge_adapter": ("adapter", "merge"),
    "transfer_adapter": ("adapter", "move"),
    "upgrade_base": ("base", "upgrade"),
}
# Arguments that only the hub gives, when it asks by itself.
OF_THE_HUB = {("upgrade_base", "source")}


def command_named(context: click.Context, path: Sequence[str]) -> click.Command:
    found: click.Command | None = group
    for name in path:
        assert isinstance(found, click.Group)
        found = found.get_command(context, name)
    assert found is not None
    return found


def test_one_schema_serves_http_sdk_and_command_line(family: Family) -> None:
    described = create_app(family.hub.registry).openapi()["components"]["schemas"]
    with click.Context(group) as context:
        for kind, arguments in KINDS.items():
            fields = set(arguments.model_fields)
            http = described[arguments.__name__]["properties"]
            assert set(http) == fields
            given = {name for name in fields if (kind, name) not in OF_THE_HUB}
            method = inspect.signature(getattr(Hub, kind)).parameters
            common = {"self", "priority", "idempotency_key"}
            assert set(method) - common == given
            command = command_named(context, COMMANDS.get(kind, (kind,)))
            options = {parameter.name for parameter in command.params}
            assert options - common - {"detach", "picture", "url", "token", "is_json"} == given
            for name in given:
                field = arguments.model_fields[name]
                default = method[name].default
                is_free = default is None or field.is_required()
                assert is_free or default == field.default, f"{kind} {name}"


def test_a_body_is_read_as_the_kind_that_it_names() -> None:
    class Bake(AskIn):
        kind: Literal["bake"]
        arguments: Any

    class Brew(AskIn):
        kind: Literal["brew"]
        arguments: Any

    body: TypeAdapter[Any] = TypeAdapter(any_of([Bake, Brew]))
    found = body.validate_python({"kind": "brew", "arguments": {"cups": 2}})
    assert (type(found), found.arguments) == (Brew, {"cups": 2})
    with pytest.raises(ValidationError, match="'bake', 'brew'"):
        body.validate_python({"kind": "fry", "arguments": {}})


def test_the_same_key_gives_the_same_job_and_no_other(family: Family) -> None:
    options = {"idempotency_key": "only once", "arguments": {"name": "ann/key", "dry_run": True}}
    first, second = ask(family, **options), ask(family, **options)
    assert first.status == second.status == 202
    assert first.json()["id"] == second.json()["id"]
    options["arguments"] = {"name": "ann/other"}
    assert ask(family, **options).code == "conflict"


BAD = {
    "one model": ({"models": ["ann/task0"]}, 422),
    "no such model": ({"models": ["ann/task0", "ann/gone"]}, 404),
    "no such revision": ({"models": ["ann/task0", "ann/task1@gone"]}, 404),
    "a taken name": ({"name": "ann/task0"}, 409),
    "another's namespace": ({"name": "admin/m"}, 403),
    "an unknown rescaler": ({"rescaler": "l3"}, 422),
    "an unknown option": ({"weights": [0.2]}, 422),
    "no name": ({"name": "merged"}, 422),
}


@pytest.mark.parametrize("fault", list(BAD))
def test_what_cannot_be_is_refused_at_once(family: Family, fault: str) -> None:
    arguments, status = BAD[fault]
    answer = ask(family, arguments=arguments)
    assert answer.status == status
    assert answer.message


def test_only_those_who_may_read_the_models_may_merge_them(family: Family) -> None:
    eve = family.hub.user("eve")
    family.ann.set_private("ann/task2", True)
    try:
        assert ask(family, eve, arguments={"name": "eve/m"}).status == 404
        reading = family.hub.user("reader", scope="read")
        assert ask(family, reading, arguments={"name": "reader/m"}).status == 403
        assert family.hub.call("POST", "/v1/jobs", body={"kind": "merge"}).status in (401, 422)
        public = ask(family, arguments={"private": False})
        assert public.status == 422
        assert "ann/task2 is private" in public.message
        mine = ask(family, arguments={"name": "ann/hidden"}).json()
        assert family.hub.call("GET", f"/v1/jobs/{mine['id']}", token=eve).status == 404
        assert family.hub.call("GET", f"/v1/jobs/{mine['id']}/log", token=eve).status == 404
        assert family.hub.call("GET", f"/v1/jobs/{mine['id']}/events", token=eve).status == 404
        assert family.hub.call("POST", f"/v1/jobs/{mine['id']}/cancel", token=eve).status == 404
        assert family.hub.call("GET", "/v1/jobs", token=eve).json()["items"] == []
        assert family.hub.wait_for_job(mine["id"], family.token)["state"] == "done"
        assert family.hub.call("GET", "/v1/repositories/ann/hidden").status == 404
    finally:
        family.ann.set_private("ann/task2", False)


def test_events_tell_what_happens_until_the_job_is_over(family: Family) -> None:
    job = ask(family, arguments={"name": "ann/watched"}).json()["id"]
    told = family.hub.call("GET", f"/v1/jobs/{job}/events", token=family.token)
    assert told.headers["Content-Type"].startswith("text/event-stream")
    events = [
        dict(line.split(": ", 1) for line in block.splitlines())
        for block in told.body.decode().split("\n\n")
        if block.startswith(("event", "id"))
    ]
    shown = [json.loads(event["data"]) for event in events if event["event"] == "job"]
    assert shown[-1]["state"] == "done"
    logged = [event for event in events if event["event"] == "log"]
    assert "fine-tunes take" in json.loads(logged[0]["data"])["text"]
    rest = family.hub.call(
        "GET", f"/v1/jobs/{job}/events", token=family.token,
        headers={"Last-Event-ID": logged[-1]["id"]},
    )  # fmt: skip
    assert b"event: log" not in rest.body
    assert b'"state": "done"' in rest.body


def test_a_cancelled_job_stops_and_leaves_nothing(family: Family) -> None:
    running = family.ann.merge(family.models, base="ann/base", name="ann/stopped")
    while running.refresh().state == "queued":
        time.sleep(0.05)
    assert running.job.state == "running"
    running.cancel()
    with pytest.raises(JobFailed, match="cancelled"):
        running.wait()
    assert family.hub.call("GET", "/v1/repositories/ann/stopped").status == 404
    # And once more, to its end.
    running.retry()
    assert running.wait().state == "done"


def test_a_push_does_not_wait_behind_a_merge(family: Family) -> None:
    jobs = [ask(family, arguments={"name": f"ann/busy{i}"}).json()["id"] for i in range(2)]
    family.hub.create("ann/quick", token=family.token)
    pushed = family.hub.commit("ann/quick", {PATH: tiny.to_file(tiny.finetune(1e-4))}, family.token)
    assert family.hub.wait_for_job(pushed["job_id"], family.token)["state"] == "done"
    states = {
        family.hub.call("GET", f"/v1/jobs/{job}", token=family.token).json()["state"]
        for job in jobs
    }
    assert states & {"queued", "running"}
    for job in jobs:
        assert family.hub.wait_for_job(job, family.token)["state"] == "done"


def test_wrong_arguments_of_the_sdk_are_named_before_anything_is_sent() -> None:
    with Hub("http://127.0.0.1:9", "dh_none") as nowhere:
        with pytest.raises(InvalidArgument, match="models"):
            nowhere.merge(["ann/one"], base="ann/base", name="ann/m")
        with pytest.raises(InvalidArgument, match="no kind of job"):
            nowhere.ask("bake", {})


def test_many_watchers_of_one_user_are_bounded(family: Family) -> None:
    with family.hub.registry.db.write() as session:
        ann = session.query(User).filter_by(name="ann").one().id
        job = queue.enqueue(session, "merge", {}, user_id=ann, lane=queue.COMPUTE)
        session.get_one(Job, job).retry_at = utc_now() + timedelta(days=1)  # so it only waits
    statuses: list[int] = []

    def watch() -> None:
        answer = family.hub.call("GET", f"/v1/jobs/{job}/events", token=family.token)
        statuses.append(answer.status)

    threads = [threading.Thread(target=watch) for _ in range(WATCHES // 8 + 1)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    while not statuses and time.monotonic() < deadline:
        time.sleep(0.1)
    assert statuses == [503]
    family.hub.call("POST", f"/v1/jobs/{job}/cancel", token=family.token)
    for thread in threads:
        thread.join(10)
    assert statuses == [503, *[200] * (WATCHES // 8)]
