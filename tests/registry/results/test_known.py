"""What the hub knows of a job's inputs is found without much work."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deltahub.registry import Caller, Registry
from deltahub.registry.db.models import Revision
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.results.known import KnownModel
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as found:
        yield found


def known(reg: Registry, who: Caller, row: int) -> KnownModel:
    with reg.db.read() as session:
        return KnownModel.load(session, reg, who, session.get_one(Revision, row))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The SHA-256 of each file whose recipe is read."""
    found: list[str] = []
    read = FileReader.read_recipe

    def counted(self: FileReader, file: object) -> bytes:
        found.append(file.sha256)  # type: ignore[attr-defined]
        return read(self, file)  # type: ignore[arg-type]

    monkeypatch.setattr(FileReader, "read_recipe", counted)
    return found


def test_a_file_with_many_paths_is_read_once(reg: Registry, reads: list[str]) -> None:
    ann = caller(reg, "ann")
    one = tiny.to_file({"a.weight": torch.ones(2, 3)})
    other = tiny.to_file({"b.weight": torch.zeros(4)})
    files = {f"copy-{i}.safetensors": one for i in range(20)} | {"z.safetensors": other}
    model = known(reg, ann, push_ingested(reg, ann, "ann/copies", files))
    reads.clear()
    assert model.shapes() == {"a.weight": ("F32", (2, 3)), "b.weight": ("F32", (4,))}
    assert len(reads) == 2


def test_the_tensors_of_a_model_with_very_many_are_left_to_the_job(
    reg: Registry, reads: list[str]
) -> None:
    ann = caller(reg, "ann")
    long = "x" * 200
    many = tiny.to_file({f"{i:05}.{long}": torch.ones(1) for i in range(5000)})
    model = known(reg, ann, push_ingested(reg, ann, "ann/many", {"model.safetensors": many}))
    reads.clear()
    assert model.shapes() is None
    assert reads == []
