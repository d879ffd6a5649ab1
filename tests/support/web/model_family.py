"""A hub with a family of really trained models: a base, fine-tunes, an adapter and a merge.

All belong to the organization `lab`. lab/secret is private.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from deltahub.registry import Caller
from deltahub.registry.access import organizations
from support.models.model_folders import base_tensors, tuned_tensors
from support.models.tiny_models import to_file
from support.registry.ingested import push_ingested
from support.registry.opened import caller
from support.service.hub import RunningHub, running_hub
from support.web.page_reader import Browser

CARD = """---
license: apache-2.0
language: [en, de]
pipeline_tag: text-generation
tags: [tiny]
---
# The base

A **bold** word, a ![plot](figures/plot.png) and [the configuration](config.json).
"""
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)
CONFIG = {"architectures": ["TinyForCausalLM"], "model_type": "tiny"}


@dataclass
class World:
    """The hub, and browsers of its administrator, of a user without models, and of a stranger."""

    hub: RunningHub
    admin: Caller
    admins: Browser
    user: Browser
    stranger: Browser


@contextmanager
def hub_with_family(data_dir: Path) -> Iterator[World]:
    """Run the hub. Its worker does not run: the models are ingested by this process."""
    with running_hub(data_dir) as hub:
        admin = caller(hub.registry, "admin")
        organizations.create_organization(hub.registry, "lab")
        organizations.add_member(hub.registry, "lab", "admin", "admin")
        _push_family(hub, admin)
        user = hub.user("user")
        yield World(hub, admin, Browser(hub, hub.admin_token), Browser(hub, user), Browser(hub))


def _push_family(hub: RunningHub, admin: Caller) -> None:
    reg = hub.registry
    base = to_file(base_tensors(torch.bfloat16))
    files = {"README.md": CARD.encode(), "config.json": json.dumps(CONFIG).encode(),
             "figures/plot.png": PNG, "model.safetensors": base}  # fmt: skip
    push_ingested(reg, admin, "lab/base", files)
    for name, rate in (("chat", 1e-4), ("code", 3e-4)):
        card = f"---\nbase_model: lab/base\nlicense: mit\n---\n# {name}\n".encode()
        tuned = to_file(tuned_tensors(rate, torch.bfloat16))
        files = {"README.md": card, "model.safetensors": tuned}
        push_ingested(reg, admin, f"lab/{name}", files, base="lab/base")
    adapter = {"base_model_name_or_path": "lab/base", "peft_type": "LORA", "r": 8}
    lora = to_file({"base_model.model.up.lora_A.weight": torch.randn(8, 384).bfloat16()})
    files = {"adapter_config.json": json.dumps(adapter).encode(), "adapter_model.safetensors": lora}
    push_ingested(reg, admin, "lab/chat-lora", files, base="lab/base")
    merge = "---\nbase_model: [lab/chat, lab/code]\nbase_model_relation: merge\n---\n# Merge\n"
    merged = to_file(tuned_tensors(2e-4, torch.bfloat16))
    files = {"README.md": merge.encode(), "model.safetensors": merged}
    push_ingested(reg, admin, "lab/merge", files, base="lab/chat")
    files = {"README.md": b"# Secret\n", "model.safetensors": merged}
    push_ingested(reg, admin, "lab/secret", files, private=True, base="lab/base")
    # A second commit of the base: a card that differs, and a tensor that does.
    again = base_tensors(torch.bfloat16)
    again["model.0.down.bias"] = again["model.0.down.bias"] + 1
    del again["model.1.down.bias"]
    again["model.9.new"] = torch.ones(4, 4)
    card = CARD.replace("**bold**", "**strong**").encode()
    push_ingested(reg, admin, "lab/base", {"README.md": card, "model.safetensors": to_file(again)})
