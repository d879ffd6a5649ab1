"""Hugging Face clients wait until other models are stored without the one that they hide."""

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import select

from deltahub.registry.access import tokens, users
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.errors import StorageFull
from deltahub.registry.jobs import queue
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested
from support.registry.opened import caller
from support.registry.withdrawing import run_withdrawal
from support.service.hf_door import error_of
from support.service.hub import Answer, RunningHub, running_hub

BASE, TUNED = tiny.to_file(tiny.base()), tiny.to_file(tiny.finetune(1e-5))
PATH = "model.safetensors"


class Owner:
    """The owner of a base with somebody else's public fine-tune, as a Hugging Face client."""

    def __init__(self, hub: RunningHub, name: str) -> None:
        users.create_user(hub.registry, name)
        self.hub, self.token = hub, tokens.create_token(hub.registry, name, "write")
        self.base, self.tuned = f"{name}/base", f"{name}-other/tuned"
        ours, others = caller(hub.registry, name), caller(hub.registry, f"{name}-other")
        push_ingested(hub.registry, ours, self.base, {PATH: BASE})
        push_ingested(hub.registry, others, self.tuned, {PATH: TUNED}, base=self.base)
        self._threads = ThreadPoolExecutor(1)

    def request(self, change: str) -> tuple[str, str, dict[str, object]]:
        namespace, _, short = self.base.partition("/")
        if change == "delete":
            return "DELETE", "/api/repos/delete", {"name": short, "organization": namespace}
        return "PUT", f"/api/models/{self.base}/settings", {"private": True}

    def begin(self, change: str) -> tuple[Future[Answer], str]:
        """The answer that is to come, and the job that it waits for."""
        method, path, body = self.request(change)
        answer = self._threads.submit(self.hub.call, method, path, token=self.token, body=body)
        return answer, self.job()

    def job(self) -> str:
        deadline = time.monotonic() + 30
        while True:
            with self.hub.registry.db.read() as session:
                found = session.scalar(
                    select(Job.id).where(Job.kind == queue.WITHDRAW, Job.state.in_(queue.ACTIVE))
                )
            if found is not None:
                return found
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def is_public(self) -> bool:
        return self.hub.call("GET", f"/api/models/{self.base}").status == 200

    def close(self) -> None:
        self._threads.shutdown()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    """On a hub of its own, because equal bytes in another public model would change the case."""
    with running_hub(tmp_path / "data") as hub:
        made = Owner(hub, "ann")
        yield made
        made.close()


@pytest.mark.parametrize("change", ["private", "delete"])
def test_the_answer_comes_when_the_model_is_gone(owner: Owner, change: str) -> None:
    answer, job = owner.begin(change)
    assert owner.is_public()
    assert not answer.done()
    run_withdrawal(owner.hub.registry, job)
    assert answer.result(30).status == 200
    assert not owner.is_public()
    found = owner.hub.call("GET", f"/{owner.tuned}/resolve/main/{PATH}")
    assert found.body == TUNED
    plan = owner.hub.call("GET", f"/v1/repositories/{owner.tuned}/recipes/{PATH}").json()
    assert all(tensor["bases"] == [] for tensor in plan["tensors"])


def test_a_failure_of_the_job_is_the_answer(owner: Owner) -> None:
    answer, job = owner.begin("private")
    with owner.hub.registry.db.write() as session:
        assert queue.mark_failed(session, job, StorageFull.code, "no room for 7 bytes")
    refused = answer.result(30)
    assert error_of(refused)[0] == 507
    assert b"no room for 7 bytes" in refused.body
    assert owner.is_public()


def test_the_job_goes_on_without_its_client(owner: Owner) -> None:
    method, path, body = owner.request("private")
    connection = http.client.HTTPConnection(*owner.hub.address, timeout=60)
    headers = {"Authorization": f"Bearer {owner.token}", "Content-Type": "application/json"}
    connection.request(method, path, json.dumps(body), headers)
    job = owner.job()
    connection.close()
    assert owner.is_public()
    run_withdrawal(owner.hub.registry, job)
    assert not owner.is_public()
    assert owner.hub.call(method, path, token=owner.token, body=body).status == 200


@pytest.mark.parametrize("change", ["private", "delete"])
def test_v1_answers_with_the_job(owner: Owner, change: str) -> None:
    path = f"/v1/repositories/{owner.base}"
    method, body = ("DELETE", None) if change == "delete" else ("PATCH", {"private": True})
    asked = owner.hub.call(method, path, token=owner.token, body=body)
    assert (asked.status, asked.json()["models"]) == (202, 1)
    again = owner.hub.call(method, path, token=owner.token, body=body)
    assert (again.status, again.json()) == (202, asked.json())
    assert owner.is_public()
    run_withdrawal(owner.hub.registry, asked.json()["job_id"])
    status = 404 if change == "delete" else 200
    assert owner.hub.call(method, path, token=owner.token, body=body).status == status
    assert not owner.is_public()
