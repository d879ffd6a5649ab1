"""A hub like one that a team has used for a while: a family of models, a merge, and many others."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from benchmarks.scale.run import fill
from deltahub.registry import Registry, Settings
from deltahub.registry.access import organizations, tokens, users
from support.adapters.tuning import trained_adapter, write_base, write_llama
from support.models.model_folders import N_PARTS, base_tensors, tuned_tensors, write_model
from support.service.hub import ServedHub, served_hub

N_GENERATED: Final = 2000
_CARD: Final = """---
license: apache-2.0
language: en
tags: [demonstration, text]
pipeline_tag: text-generation
{more}---
# {title}

A small model, trained on *poems*. It shows what a card may have:

| task | accuracy |
|---|---:|
| rhyme | 0.81 |
| metre | 0.77 |

- [x] trained
- [ ] evaluated by somebody else

```python
from transformers import AutoModel
model = AutoModel.from_pretrained("{name}")
```
"""


@dataclass
class FilledHub:
    """hub: the running server with its worker. token: of the administrator."""

    hub: ServedHub
    token: str
    guest_token: str  # of a user who is a member of nothing

    @property
    def url(self) -> str:
        return self.hub.url


@contextmanager
def filled_hub(folder: Path, *, n_generated: int = N_GENERATED) -> Iterator[FilledHub]:
    """Start a hub, push a family of trained models, one of them twice, and merge two of them.

    admin/haiku-nz is an export of one.

    admin/next-letter and admin/last-letter are PiSSA adapters, which can be converted, of
    admin/letters, whose upgrade to admin/letters-2 is planned.

    n_generated: further repositories, with a card each.
    """
    data, models = folder / "data", folder / "models"
    torch.set_num_threads(1)
    _write_family(models)
    _write_adapter(models)
    token = fill(data, n_generated, folder)
    with Registry.open(Settings(data_dir=data)) as reg:
        users.create_user(reg, "ida")
        guest = tokens.create_token(reg, "ida", "write", "tests")
        organizations.create_organization(reg, "lyrics")
        organizations.add_member(reg, "lyrics", "admin", "admin")
        organizations.add_member(reg, "lyrics", "ida", "write")
    with served_hub(data, token=token) as hub:
        run(hub, token, models, "push", "letters", "admin/letters")
        for name in ("next-letter", "last-letter"):
            adapter = ("push", "next-letter", f"admin/{name}", "--base", "admin/letters")
            run(hub, token, models, *adapter)
        # The newer base cannot move them: both have to become plain LoRAs first.
        run(hub, token, models, "push", "letters-2", "admin/letters-2")
        upgrade = ("--from", "admin/letters", "--policy", "ask")
        run(hub, token, models, "base", "upgrade", "admin/letters-2", *upgrade)
        for name in ("base", "haiku", "sonnet", "limerick"):
            options = [] if name == "base" else ["--base", "admin/base"]
            private = ["--private"] if name == "limerick" else []
            run(hub, token, models, "push", name, f"admin/{name}", *options, *private)
        _train_longer(models / "haiku")
        run(hub, token, models, "push", "haiku", "admin/haiku", "-m", "Train the last layer longer")
        run(
            hub, token, models, "merge", "emr", "--base", "admin/base", "admin/haiku",
            "admin/sonnet", "--name", "admin/poems",
        )  # fmt: skip
        exported = ("export", "neuzip", "admin/haiku", "--name", "admin/haiku-nz", "--bits", "3")
        run(hub, token, models, *exported)
        run(hub, token, models, "compare", "admin/base", "admin/haiku")
        yield FilledHub(hub, token, guest)


def run(hub: ServedHub, token: str, cwd: Path, *arguments: str) -> str:
    """A command of our client, which must succeed."""
    code = "from deltahub.client.cli.main import main; main()"
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": str(cwd), "DELTAHUB_URL": hub.url,
        "DELTAHUB_TOKEN": token, "DELTAHUB_CACHE": str(cwd / "cache"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, env=environment, text=True,
        capture_output=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def _write_family(models: Path) -> None:
    folders = {"base": base_tensors()}
    for name, rate in (("haiku", 1e-4), ("sonnet", 2e-4), ("limerick", 3e-4)):
        folders[name] = tuned_tensors(rate)
    for name, tensors in folders.items():
        folder = write_model(models / name, tensors)
        more = "" if name == "base" else "base_model: admin/base\n"
        card = _CARD.format(title=name.title(), name=f"admin/{name}", more=more)
        (folder / "README.md").write_text(card)


def _write_adapter(models: Path) -> None:
    """Train a PiSSA adapter of a Llama that answers with a letter, and name its base."""
    folder = models / "next-letter"
    write_llama(models / "letters-2", "next")
    trained_adapter(write_base(models / "letters"), folder, init_lora_weights="pissa")
    config = folder / "adapter_config.json"
    told = json.loads(config.read_text()) | {"base_model_name_or_path": "admin/letters"}
    config.write_text(json.dumps(told, indent=2))
    card = "---\nbase_model: admin/letters\nlibrary_name: peft\n---\n"
    (folder / "README.md").write_text(f"{card}# Next letter\n\nSays the letter that follows.\n")


def _train_longer(folder: Path) -> None:
    """Change what a second push of a model changes: a number in its card, and some tensors."""
    card = folder / "README.md"
    text = card.read_text()
    longer = {
        name: tensor
        for name, tensor in tuned_tensors(2e-4).items()
        if name.startswith(f"model.{N_PARTS - 1}.")
    }
    write_model(folder, tuned_tensors(1e-4) | longer)
    card.write_text(text.replace("0.81", "0.84"))
