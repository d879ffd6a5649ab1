"""A hub with a worker, Llamas that ann has pushed, and exports of them."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from deltahub.client import Hub
from deltahub.codecs.dtypes import DType
from deltahub.codecs.exports.file import FILE_NAME, ExportFile
from support.exporting.llamas import write_llama
from support.models.tiny_models import Tensors, to_file
from support.service.hub import RunningHub, running_hub

Array = npt.NDArray[np.float64]


@dataclass
class Place:
    """A running hub, ann's client and token. root: for folders of models."""

    hub: RunningHub
    ann: Hub
    token: str
    root: Path
    _models: dict[str, Tensors] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """For a command of ann's."""
        return {"DELTAHUB_URL": self.hub.url, "DELTAHUB_TOKEN": self.token}

    def model(self, name: str, *, base: str | None = None, **options: Any) -> Tensors:
        """The tensors of ann's model of this name, which is pushed if it is not there. options: of
        write_llama().
        """
        if name not in self._models:
            self._models[name] = write_llama(self.folder(name), **options)
            self.ann.push(self.folder(name), f"ann/{name}", base=base)
        return self._models[name]

    def push(self, name: str, tensors: Tensors) -> None:
        """Push a model of these tensors alone as ann/NAME."""
        folder = self.folder(name)
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(to_file(tensors))
        self.ann.push(folder, f"ann/{name}")

    def folder(self, name: str) -> Path:
        return self.root / "models" / name

    def export(self, model: str, name: str, **options: Any) -> tuple[ExportFile, dict[str, Any]]:
        """Export ann/MODEL as ann/NAME and pull it; its file and its report."""
        job = self.ann.export_neuzip(f"ann/{model}", f"ann/{name}", **options).wait()
        assert job.result is not None
        report: dict[str, Any] = job.result["export"]
        return self.pulled(name), report

    def pulled(self, name: str) -> ExportFile:
        return ExportFile((self.ann.pull(f"ann/{name}") / FILE_NAME).read_bytes(), name)


@contextlib.contextmanager
def export_place(root: Path) -> Iterator[Place]:
    """Run one in a folder."""
    with pytest.MonkeyPatch.context() as patch, running_hub(root / "data", with_worker=True) as hub:
        patch.setenv("DELTAHUB_CACHE", str(root / "cache"))
        patch.setenv("HF_HOME", str(root / "hf"))
        token = hub.user("ann")
        with Hub(hub.url, token) as ann:
            yield Place(hub, ann, token, root)


def plain_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())


def decoded(export: ExportFile, name: str, bits: int | None = None) -> bytes:
    """The bytes of a tensor of the export, decoded if it is compressed."""
    if name in export.plain:
        return bytes(export.bytes_of(export.plain[name]))
    weight = export.weights[name]
    out = bytearray(weight.plain_bytes)
    weight.decode_into(memoryview(out), bits)
    return bytes(out)


def as_numbers(data: bytes, dtype: str) -> Array:
    """Elements as float64, by NumPy alone."""
    if dtype == DType.BF16.name:
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    kind = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype]
    return np.frombuffer(data, kind).astype(np.float64)


def assert_lossless(export: ExportFile, tensors: Mapping[str, torch.Tensor]) -> None:
    """Every tensor of the model, and no other, decodes to its bytes."""
    assert {*export.weights, *export.plain} == {*tensors}
    for name, tensor in tensors.items():
        assert decoded(export, name) == plain_bytes(tensor), name
