"""A hub with a worker, and one family of models in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deltahub.client import Hub
from support.merging.running import CONFIG, PATH
from support.models import tiny_models as tiny
from support.service.hub import RunningHub, running_hub

N_TASKS = 3


@dataclass
class Family:
    """A running hub with `ann/base`, `ann/task0` ... and a client of ann's."""

    hub: RunningHub
    ann: Hub
    token: str

    @property
    def models(self) -> list[str]:
        return [f"ann/task{number}" for number in range(N_TASKS)]


@contextmanager
def served_family(data_dir: Path) -> Iterator[Family]:
    with running_hub(data_dir, with_worker=True) as hub:
        token = hub.user("ann")
        for name, tensors in {
            "base": tiny.base(),
            **{f"task{number}": tiny.task(number) for number in range(N_TASKS)},
        }.items():
            hub.create(f"ann/{name}", token=token)
            files = {PATH: tiny.to_file(tensors), **CONFIG}
            base = {} if name == "base" else {"base": "ann/base"}
            job = hub.commit(f"ann/{name}", files, token, **base)["job_id"]
            assert hub.wait_for_job(job, token)["state"] == "done"
        with Hub(hub.url, token) as ann:
            yield Family(hub, ann, token)
