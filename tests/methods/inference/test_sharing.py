"""Threads, forks, ties, switches and casts that share a model's weights or its buffers."""

import copy
import json
import os
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from deltahub.codecs.exports.file import FILE_NAME, map_export
from deltahub.methods.inference.family import Family
from deltahub.methods.inference.model import compress_, load_folder, load_into
from deltahub.methods.inference.modules import CompressedModule
from support.models.exported import batch, train, trained_llama, write_export


@pytest.fixture(scope="module")
def lossless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(trained_llama(), tmp_path_factory.mktemp("lossless"))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(batch(3)).logits
    return found


def test_models_are_loaded_side_by_side(lossless: Path) -> None:
    register, made, plain = nn.Module.register_parameter, [], []

    def load() -> None:
        made.append(load_folder(lossless))

    threads = [Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        plain.append(nn.Linear(2, 2))  # of somebody else
    for thread in threads:
        thread.join()
    assert nn.Module.register_parameter is register
    assert len(made) == 4
    assert all(each.weight.device.type == "cpu" and each.weight.requires_grad for each in plain)


def test_a_configuration_without_a_dtype_means_that_of_the_weights(
    lossless: Path, tmp_path: Path
) -> None:
    for path in lossless.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = tmp_path / "config.json"
    told = {**json.loads(config.read_text())}
    told.pop("dtype", None)
    told.pop("torch_dtype", None)
    config.write_text(json.dumps(told))
    found = logits(load_folder(tmp_path))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, logits(trained_llama()))


def test_a_switch_there_and_back_decodes_what_is_used(tmp_path: Path) -> None:
    other = trained_llama()
    train(other, steps=4, rate=1e-4, start=2000)
    for name, model in (("base", trained_llama()), ("other", other)):
        model.save_pretrained(tmp_path / name)
    family = Family(tmp_path / "base", {"other": tmp_path / "other"})
    expected = logits(trained_llama())
    for _ in range(60):
        assert torch.equal(logits(family.model), expected)
        family.use("other")
        family.use("base")


def test_zeros_of_a_fine_tune_keep_their_sign(tmp_path: Path) -> None:
    model = trained_llama()
    for name, zero in (("base", 0.0), ("tuned", -0.0)):
        with torch.no_grad():
            model.model.norm.weight[3] = zero
        model.save_pretrained(tmp_path / name)
    family = Family(tmp_path / "base", {"tuned": tmp_path / "tuned"})
    assert torch.signbit(family.use("tuned").get_parameter("model.norm.weight")[3])
    assert not torch.signbit(family.use("base").get_parameter("model.norm.weight")[3])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.embed(ids))
        return found


def test_ties_of_any_module_are_kept(tmp_path: Path) -> None:
    torch.manual_seed(2)
    plain = Tied()
    ids = torch.arange(12)[None]

    class Saved:
        """As save_pretrained of a model writes it: a tied weight once."""

        def save_pretrained(self, folder: Path) -> None:
            folder.mkdir(exist_ok=True)
            save_file({"embed.weight": plain.embed.weight.detach()}, folder / "model.safetensors")

    write_export(Saved(), tmp_path, lossless=True)
    model = Tied()
    load_into(model, map_export(tmp_path / FILE_NAME))
    assert isinstance(model.head, CompressedModule)
    assert torch.equal(model(ids), plain(ids))


def test_a_tied_weight_is_kept_if_one_of_its_names_is() -> None:
    plain = Tied()
    model = compress_(copy.deepcopy(plain), bits=3, keep=["head.weight"])
    assert torch.equal(model.state_dict()["embed.weight"], plain.embed.weight)


def test_gradients_do_not_come_from_a_state_that_was_changed(lossless: Path) -> None:
    model = load_folder(lossless)
    embedded = torch.randn(2, 4, 64, dtype=torch.bfloat16, requires_grad=True)

    def gradient() -> torch.Tensor:
        loss = model(inputs_embeds=embedded).logits.float().square().mean()
        (found,) = torch.autograd.grad(loss, embedded)
        return found

    expected = gradient()
    state = model.state_dict()
    for name, each in state.items():
        if name not in dict(model.named_parameters()):
            each.zero_()
    assert torch.equal(gradient(), expected)


@pytest.mark.parametrize("moved", [False, True])
def test_autograd_keeps_no_weight_that_was_cast(moved: bool) -> None:
    torch.manual_seed(1)
    layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    model = compress_(copy.deepcopy(layers), lossless=True)
    if moved:
        layers, model = layers.double(), model.double()
    kept = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    def run(module: nn.Module) -> torch.Tensor:
        inputs = torch.ones(2, 256, dtype=torch.float64 if moved else None, requires_grad=True)
        with torch.autocast("cpu", enabled=not moved):
            loss = module(inputs).square().sum()
        (found,) = torch.autograd.grad(loss, inputs)
        return found

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found = run(model)
    assert max(kept) < 256 * 256
    for each in layers.parameters():
        each.requires_grad_(False)
    assert torch.equal(found, run(layers))


def test_a_forked_process_computes(lossless: Path) -> None:
    model = load_folder(lossless)
    expected = logits(model)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        os._exit(0 if torch.equal(logits(model), expected) else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
