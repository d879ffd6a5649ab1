"""A hub with frames of effort fast and of a client, which `deltahub recompress` can improve."""

from dataclasses import dataclass
from pathlib import Path

import torch

from deltahub.registry import Registry
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.reencode.recompress import (
    Outcome,
    Plan,
    apply_recompress,
    plan_recompress,
)
from support.models.tiny_models import Tensors, to_file
from support.registry.ingested import (
    Stored,
    push_ingested,
    read_file,
    send_ingested,
    stored_tensors,
)
from support.registry.opened import caller, opened_registry

PATH = "model.safetensors"
MATRICES = ("a.weight", "b.weight")


def model(*, merged: int | None = None, moved: float = 0) -> Tensors:
    """Two matrices and a bias in BF16. merged: the seed of a low-rank update upon them. moved: the
    share of words that have moved by a step or two, as a gentle fine-tune's."""
    generator = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(128, 192, generator=generator) * 0.02 for name in MATRICES}
    tensors["bias"] = torch.randn(64, generator=generator)
    if merged is not None:
        generator.manual_seed(merged)
        for name in MATRICES:
            left = torch.randn(128, 2, generator=generator)
            tensors[name] += left @ torch.randn(2, 192, generator=generator) * 1e-3
    words = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    for tensor in words.values():
        if moved:
            tensor[torch.rand(tensor.shape, generator=generator) < moved] *= 1 + 2**-7
    return words


FILES = {
    "ann/base": to_file(model()),
    "ann/tune": to_file(model(merged=2)),
    "ann/sent": to_file(model(merged=3)),
}


def in_f32(tensors: Tensors) -> bytes:
    """A file with the same values in a longer dtype."""
    return to_file({name: tensor.float() for name, tensor in tensors.items()})


@dataclass(frozen=True)
class OldHub:
    """A data folder that was written at effort fast, and by a client; the revisions by name."""

    folder: Path
    revisions: dict[str, int]


def make_old_hub(folder: Path) -> OldHub:
    """A public base and fine-tune, and a fine-tune sent without a base to ann's own repository."""
    with opened_registry(folder, codec_effort="fast") as reg:
        ann = caller(reg, "ann")
        base, tune, sent = FILES.values()
        revisions = {
            "ann/base": push_ingested(reg, ann, "ann/base", {PATH: base}),
            "ann/tune": push_ingested(reg, ann, "ann/tune", {PATH: tune}, base="ann/base"),
            "ann/sent": send_ingested(reg, ann, "ann/sent", sent, private=True),
        }
    return OldHub(folder, revisions)


def stored(reg: Registry, hub: OldHub) -> dict[str, dict[str, Stored]]:
    return {name: stored_tensors(reg, revision) for name, revision in hub.revisions.items()}


def check(reg: Registry, hub: OldHub, *names: str) -> None:
    """The files come back bit for bit, and fsck finds nothing."""
    for name in names or FILES:
        assert read_file(reg, hub.revisions[name], PATH) == FILES[name]
    assert list(fsck(reg, read_data=True)) == []


def plan(reg: Registry) -> Plan:
    return plan_recompress(reg, FileReader(reg))


def recompress_all(reg: Registry) -> Outcome:
    return apply_recompress(reg, FileReader(reg), plan(reg))
