"""A hub with a worker, and the tiny world that ann has pushed: two bases and an adapter."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.client import Hub
from support.adapters.place import Place
from support.registry.opened import caller
from support.service.hub import running_hub
from support.transfer.running import (
    WHOLE,
    Amount,
    put_teacher_kit,
    teacher_files,
    write_base,
)


@contextlib.contextmanager
def transfer_place(
    root: Path, *bases: str, amount: Amount = WHOLE, with_kit: bool = True
) -> Iterator[Place]:
    """Run one in a folder, with ann/v1, these other bases, and ann/teacher of v1."""
    with pytest.MonkeyPatch.context() as patch, running_hub(root / "data", with_worker=True) as hub:
        patch.setenv("DELTAHUB_CACHE", str(root / "cache"))
        patch.setenv("HF_HOME", str(root / "hf"))
        token = hub.user("ann")
        with Hub(hub.url, token) as ann:
            for name in ("v1", *bases):
                ann.push(write_base(name, root / name, amount), f"ann/{name}")
            adapter = root / "teacher"
            adapter.mkdir()
            for name, data in teacher_files("ann/v1", amount).items():
                (adapter / name).write_bytes(data)
            ann.push(adapter, "ann/teacher", base="ann/v1")
            place = Place(hub, ann, token, root / "v1")
            place.report_of("ann/teacher")
            if with_kit:
                put_teacher_kit(hub.registry, caller(hub.registry, "ann"), amount)
            yield place
