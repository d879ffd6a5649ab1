"""Kits of adapters whose bases have no architecture: the registry reads nothing of them."""

import json
from typing import Any, Final

import torch
from safetensors.torch import save

from deltahub.registry import Caller, Registry
from deltahub.registry.adapters.files import CONFIG, WEIGHTS
from deltahub.registry.adapters.kits import NewKit, put_kit
from deltahub.registry.catalog.repositories import get_repository
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested
from support.registry.opened import sha256_of

BASE: Final = "ann/base"
ADAPTER: Final = "ann/adapter"
MARK: Final = "the-private-sentence"


def weights(seed: int, rank: int = 2) -> bytes:
    """A file of LoRA matrices."""
    generator = torch.Generator().manual_seed(seed)
    place = "base_model.model.up.lora_{}.weight"
    shapes = {"A": (rank, 8), "B": (8, rank)}
    return save({place.format(k): torch.randn(v, generator=generator) for k, v in shapes.items()})


def discriminator(rank: int = 2, seed: int = 9) -> bytes:
    """A file of LoRA matrices with its configuration, as a kit has it."""
    from deltahub.methods.transfer.discriminator_file import pack_discriminator

    config = {"peft_type": "LORA", "r": rank, "target_modules": ["up"]}
    return pack_discriminator(json.dumps(config).encode(), weights(seed, rank))


def push_adapter(
    reg: Registry, who: Caller, *, name: str = ADAPTER, private: bool = False, seed: int = 1
) -> bytes:
    """Push a base, if it is not there, and an adapter of it; the adapter's weights."""
    if name == ADAPTER and seed == 1:
        push_ingested(reg, who, BASE, {"model.safetensors": tiny.to_file(tiny.base())})
    data = weights(seed)
    config = json.dumps({"peft_type": "LORA", "base_model_name_or_path": BASE}).encode()
    files = {CONFIG: config, WEIGHTS: data}
    push_ingested(reg, who, name, files, private=private, base=BASE)
    return data


def head(reg: Registry, who: Caller, name: str) -> str:
    """The commit of main."""
    found = get_repository(reg, who, name).head
    assert found is not None
    return found


def kit_json(adapter: bytes, base: str, found: bytes, **options: Any) -> dict[str, Any]:
    """What kit.json says of these files. base: `namespace/name@commit`."""
    threshold = {"margin": 0.0, "real_kept": 0.9, "synthetic_kept": 0.1}
    report = {
        "auc": 0.91, "auc_error": 0.02, "epoch": 3, "n_trained": 80, "n_real": 10,
        "n_synthetic": 10, "loss": 0.2, "has_single_labels": True, "thresholds": [threshold],
    }  # fmt: skip
    made = {
        "name": "digits", "adapter": f"{ADAPTER}@main", "base": base, "contract": {},
        "seeds": [{"input": f"{MARK} {n}", "completion": f"{MARK} answer"} for n in range(5)],
        "n_examples": 50, "source_accuracy": 0.8, "n_tests": 20, "discriminator": report,
        "adapter_sha256": sha256_of(adapter), "discriminator_sha256": sha256_of(found),
        "tokenizer_sha256": "0" * 64,
    }  # fmt: skip
    return made | options


def new_kit(kit: dict[str, Any]) -> NewKit:
    return NewKit(kit, kit["base"], kit["adapter_sha256"], kit["discriminator_sha256"])


def put(
    reg: Registry, who: Caller, adapter: bytes, found: bytes, *, name: str = ADAPTER, **options: Any
) -> None:
    """Store a kit for the adapter's base."""
    base = options.pop("base", None) or f"{BASE}@{head(reg, who, BASE)}"
    kit = kit_json(adapter, base, found, **options)
    pieces = [found[at : at + 1000] for at in range(0, len(found), 1000)]
    put_kit(reg, who, name, new_kit(kit), pieces)
