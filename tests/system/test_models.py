"""Real models through a real hub: sharded, tied, adapters, odd files; loaded again by name."""

import hashlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from deltahub.client import Hub
from support.service.hub import ServedHub, served_hub

LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
models = [AutoModelForCausalLM.from_pretrained(name) for name in sys.argv[2:]]
with torch.no_grad():
    ids = torch.arange(24).reshape(2, 12)
    torch.save([model(input_ids=ids).logits for model in models], sys.argv[1])
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    with served_hub(tmp_path_factory.mktemp("served") / "data folder") as hub:
        yield hub


@pytest.fixture
def hub(served: ServedHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HOME", str(tmp_path))
    move_to_another_machine(tmp_path / "here", monkeypatch)
    with Hub(served.url, served.admin_token) as sdk:
        yield sdk


def move_to_another_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAHUB_CACHE", str(folder / "deltahub"))
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hf"))


def new_llama(is_tied: bool) -> LlamaForCausalLM:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=160, hidden_size=256, intermediate_size=640, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=is_tied,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def train(model: torch.nn.Module, text: bytes, rate: float, steps: int) -> None:
    """Language modelling on bytes of a real file."""
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=rate)
    generator = torch.Generator().manual_seed(1)
    data = torch.tensor([byte % 160 for byte in text])
    for _ in range(steps):
        starts = torch.randint(0, len(data) - 33, (8,), generator=generator)
        ids = torch.stack([data[s : s + 32] for s in starts])
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def stock_logits(tmp_path: Path, names: list[str], machine: Path) -> list[torch.Tensor]:
    """The logits of models as stock transformers loads them offline, by name or from a folder."""
    out = tmp_path / "logits.pt"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD, str(out), *names],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(machine / "hf")},
        check=True,
    )
    logits: list[torch.Tensor] = torch.load(out)
    return logits


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_sharded_models_come_back_and_load_by_name(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {kind: tmp_path / kind for kind in ("tied", "untied")}
    for kind, folder in folders.items():
        name = f"admin/llama-{kind}"
        train_sharded(folder, is_tied=kind == "tied")
        hub.push(folder / "base", name)
        hub.push(folder / "tune", f"{name}-tune", base=name)

    machine = tmp_path / "there"
    move_to_another_machine(machine, monkeypatch)
    for kind, folder in folders.items():
        name = f"admin/llama-{kind}"
        pulled = hub.pull(name, sha256=True)
        report = hub.pull_with_report(f"{name}-tune", sha256=True)
        assert hashes(pulled) == hashes(folder / "base")
        assert hashes(report.path) == hashes(folder / "tune")
        assert report.received < 0.6 * report.size
    names = [f"admin/llama-{kind}-tune" for kind in folders]
    names += [str(folder / "tune") for folder in folders.values()]
    logits = stock_logits(tmp_path, names, machine)
    for by_name, from_folder in zip(logits[:2], logits[2:], strict=True):
        assert torch.equal(by_name, from_folder)


def train_sharded(folder: Path, *, is_tied: bool) -> None:
    """Write a base and a fine-tune in several files each, to `base` and `tune`."""
    model = new_llama(is_tied)
    text = Path(json.__file__).read_bytes()
    train(model, text, 2e-3, 30)
    model.to(torch.bfloat16).save_pretrained(folder / "base", max_shard_size="1500KB")
    model.float()
    train(model, Path(struct.__file__).read_bytes() + text, 1e-5, 10)
    model.to(torch.bfloat16).save_pretrained(folder / "tune", max_shard_size="1500KB")
    assert (folder / "tune" / "model.safetensors.index.json").exists()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_merged_adapter_and_the_adapter_itself_come_back(hub: Hub, tmp_path: Path) -> None:
    model = new_llama(is_tied=True)
    train(model, Path(json.__file__).read_bytes(), 2e-3, 20)
    model.save_pretrained(tmp_path / "base")
    hub.push(tmp_path / "base", "admin/lora-base")
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(model, config)
    train(adapted, Path(struct.__file__).read_bytes() * 20, 1e-3, 10)
    adapted.save_pretrained(tmp_path / "adapter")
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    for kind in ("adapter", "merged"):
        hub.push(tmp_path / kind, f"admin/lora-{kind}", base="admin/lora-base")
        hub.pull(f"admin/lora-{kind}", to=tmp_path / "back" / kind)
        assert hashes(tmp_path / "back" / kind) == hashes(tmp_path / kind)
    info = hub.info("admin/lora-merged")
    assert info["totals"]["own"] < 0.7 * info["totals"]["size"]


def odd_files() -> dict[str, bytes]:
    many = {f"t{i}": {"dtype": "F16", "shape": [8], "data_offsets": [16 * i, 16 * i + 16]}
            for i in range(10_000)}  # fmt: skip
    odd = {
        "__metadata__": {"format": "pt"},
        "scalar": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        "empty": {"dtype": "BF16", "shape": [0, 7], "data_offsets": [4, 4]},
        "bytes": {"dtype": "F8_E4M3", "shape": [3, 5], "data_offsets": [9, 24]},
    }
    return {
        "many.safetensors": safetensors(many, os.urandom(160_000)),
        "odd.safetensors": safetensors(odd, bytes(range(24)) + b"trailing bytes", b"   \n"),
        "lie.safetensors": b"PK\x03\x04 not what its name says" * 20,
        "short.safetensors": b"\x08",
        "300.bin": os.urandom(300),
        "empty.txt": b"",
        "deep/er/notes.md": b"# notes\n" * 400_000,
        "weights.pt": os.urandom(20 << 20),
    }


def safetensors(header: dict[str, object], data: bytes, spacing: bytes = b"") -> bytes:
    text = json.dumps(header).encode() + spacing
    return struct.pack("<Q", len(text)) + text + data


def test_every_byte_of_odd_files_comes_back(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, data in odd_files().items():
        (tmp_path / "odd" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "odd" / path).write_bytes(data)
    hub.push(tmp_path / "odd", "admin/odd")
    move_to_another_machine(tmp_path / "there", monkeypatch)
    hub.pull("admin/odd", to=tmp_path / "back")
    assert hashes(tmp_path / "back") == hashes(tmp_path / "odd")
    notes = {file["path"]: file["note"] for file in hub.info("admin/odd")["files"]}
    assert notes["lie.safetensors"] is not None
    assert notes["short.safetensors"] is not None
    assert notes["odd.safetensors"] is None
