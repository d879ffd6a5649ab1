"""Loses packs of a real hub: what the operator does, and the doors by which users push again."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from sqlalchemy import select

from deltahub.client import Hub
from deltahub.registry.db.models import File, FileTensor, Frame, Repository, Revision
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.trees import Entry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.storage.keys import pack_key
from support.models.model_folders import base_tensors, contents, tuned_tensors, write_model
from support.models.tiny_models import Tensors
from support.service.client_process import deltahub
from support.service.hub import RunningHub, running_hub

PATH = "model.safetensors"
HF_UPLOAD = """
import sys
from huggingface_hub import HfApi
HfApi().upload_folder(repo_id=sys.argv[1], folder_path=sys.argv[2])
"""


@contextmanager
def hub_with_others(data_dir: Path) -> Iterator[RunningHub]:
    """A hub with a worker, and files in it of which these tests lose none."""
    with running_hub(data_dir, with_worker=True) as hub:
        hub.create("admin/other")  # so that not most of the hub is lost
        for i in range(3):
            made = hub.commit("admin/other", {f"{i}.bin": os.urandom(1000)})
            hub.wait_for_job(made["job_id"])
        yield hub


def set_homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients keep what they remember in tmp_path."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DELTAHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def by_deltahub(hub: RunningHub, name: str, folder: Path) -> None:
    with Hub(hub.url, hub.admin_token) as sdk:
        assert sdk.push(folder, name).state == "proved"


def by_another_machine(hub: RunningHub, name: str, folder: Path) -> None:
    environment = {"DELTAHUB_CACHE": str(folder.parent / "elsewhere")}
    done = deltahub(
        "push", str(folder), name, "--json",
        environment={**environment, "DELTAHUB_URL": hub.url, "DELTAHUB_TOKEN": hub.admin_token},
    )  # fmt: skip
    assert (done.status, done.json()["state"]) == (0, "proved"), done.err


def by_hf(hub: RunningHub, name: str, folder: Path, *, with_xet: bool = True) -> None:
    environment = {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": hub.admin_token,
        "HF_HUB_DISABLE_XET": "" if with_xet else "1",
    }
    command = [sys.executable, "-c", HF_UPLOAD, name, str(folder)]
    subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True)
    wait_for_jobs(hub)


def by_lfs(hub: RunningHub, name: str, folder: Path) -> None:
    by_hf(hub, name, folder, with_xet=False)


def by_put(hub: RunningHub, name: str, folder: Path) -> None:
    made = hub.commit(name, contents(folder))
    assert hub.wait_for_job(made["job_id"])["state"] == "done"


Door = Callable[[RunningHub, str, Path], None]
DOORS = [by_deltahub, by_another_machine, by_hf, by_lfs, by_put]


def wait_for_jobs(hub: RunningHub) -> None:
    with hub.registry.db.read() as session:
        jobs = session.scalars(select(Job.id)).all()
    for job in jobs:
        assert hub.wait_for_job(job)["state"] == "done"


def own(tensors: Tensors, seed: int) -> Tensors:
    """Other weights for each test, with the same differences."""
    torch.manual_seed(seed)
    noise = {name: torch.randn(1).item() for name in tensors}
    return {name: tensor + noise[name] for name, tensor in tensors.items()}


def lose_a_base(hub: RunningHub, tmp_path: Path, seed: int) -> dict[str, Path]:
    """Push a base and its fine-tune, and delete the packs of the base: repository -> folder."""
    base, tune = f"admin/base-{seed}", f"admin/tune-{seed}"
    note = str(seed)
    folders = {
        base: write_model(tmp_path / "base", own(base_tensors(), seed), note=note),
        tune: write_model(tmp_path / "tune", own(tuned_tensors(), seed), note=note + "t"),
    }
    with Hub(hub.url, hub.admin_token) as sdk:
        sdk.push(folders[base], base)
        sdk.push(folders[tune], tune, base=base)
        wait_for_jobs(hub)
        assert sdk.info(tune)["totals"]["base"] > 0
    for pack in packs_of(hub, base):
        hub.registry.store.delete(pack_key(pack))
    return folders


def packs_of(hub: RunningHub, name: str) -> set[str]:
    """The packs with frames of the repository's files."""
    files = [file.id for file in files_of(hub, name)]
    with hub.registry.db.read() as session:
        return set(
            session.scalars(
                select(Frame.pack_id)
                .join(FileTensor, FileTensor.tensor_id == Frame.tensor_id)
                .where(FileTensor.file_id.in_(files))
            )
        )


def operate(hub: RunningHub, *arguments: str) -> tuple[int, str]:
    """Run a command of the operator beside the running hub: (exit status, output)."""
    done = deltahub(*arguments, "--data-dir", str(hub.data_dir))
    return done.status, done.out + done.err


def read(hub: RunningHub, name: str, path: str) -> tuple[int, bytes]:
    answer = hub.call("GET", f"/{name}/resolve/main/{path}", token=hub.admin_token)
    return answer.status, answer.body


def check_all(hub: RunningHub, folders: dict[str, Path]) -> None:
    """Compare all files, as the running hub sends them and as a hub without caches reads them."""
    fresh = FileReader(hub.registry)
    for name, folder in folders.items():
        for path, data in contents(folder).items():
            assert read(hub, name, path) == (200, data), (name, path)
        for file in files_of(hub, name):
            digest = sha256(b"".join(fresh.stream_file(file, 0, file.size))).hexdigest()
            assert digest == file.sha256


def files_of(hub: RunningHub, name: str) -> list[File]:
    with hub.registry.db.read() as session:
        return list(
            session.scalars(
                select(File)
                .join(Entry, Entry.file_id == File.id)
                .join(Revision, Revision.id == Entry.revision_id)
                .join(Repository, Repository.id == Revision.repository_id)
                .where(Repository.name == name.partition("/")[2])
                .distinct()
            )
        )


def repair_and_push(hub: RunningHub, models: dict[str, Path], door: Door) -> None:
    """The operator repairs, a user pushes the base again by this door, and all is well."""
    base, tune = models
    assert operate(hub, "gc", "--apply")[0] == 1
    status, told = operate(hub, "fsck", "--repair")
    assert status == 1
    assert f"'{PATH}' of {base} is lost" in told
    assert f"'{PATH}' of {tune} is lost" in told
    assert operate(hub, "gc", "--apply")[0] == 0
    door(hub, base, models[base])
    check_all(hub, models)
    told = operate(hub, "fsck", "--read-data")[1]
    assert base not in told, told  # other tests leave lost models behind
    assert tune not in told, told
    assert operate(hub, "gc", "--apply")[0] == 0
