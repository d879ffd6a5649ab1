"""A registry with a user, and a base and fine-tunes of hers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry
from support.models import model_folders as folders
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested
from support.registry.opened import caller, opened_registry

FILE = "model.safetensors"


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as opened:
        yield opened


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


@pytest.fixture
def models(reg: Registry, ann: Caller) -> None:
    """ann/base, and ann/tuned, which has other weights, one more tensor, one less, one longer."""
    base, tuned = folders.base_tensors(), folders.tuned_tensors()
    tuned["model.0.head.weight"] = base["model.0.head.weight"]
    tuned["extra.weight"] = base["model.0.up.bias"]
    del tuned["model.1.down.bias"]
    tuned["model.1.up.bias"] = tuned["model.1.up.bias"][:-1].clone()
    push_ingested(reg, ann, "ann/base", {FILE: tiny.to_file(base)})
    push_ingested(reg, ann, "ann/tuned", {FILE: tiny.to_file(tuned)}, base="ann/base")
