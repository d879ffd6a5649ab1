"""Exports that are damaged, or are none, and modules that they do not fit."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deltahub.codecs.errors import CodecError, InvalidInput
from deltahub.codecs.exports.file import FILE_NAME, map_export
from deltahub.methods.errors import CannotExport
from deltahub.methods.inference.model import load_folder, load_into
from support.models.exported import batch, trained_llama, write_export


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return write_export(trained_llama(), tmp_path, bits=3, also=(1,))


def test_a_damaged_weight_is_named(export: Path) -> None:
    path = export / FILE_NAME
    weight = map_export(path).weights["model.layers.1.mlp.up_proj.weight"]
    for part in ("words", "m3"):
        payload = bytes(weight.slices[0][part].body[-60:])
        data = bytearray(path.read_bytes())
        data[data.index(payload) + 30] ^= 4
        (export / FILE_NAME).write_bytes(data)
        with pytest.raises(CodecError, match=r"^model\.layers\.1\.mlp\.up_proj\.weight: .*again"):
            load_folder(export)(batch())
        write_export(trained_llama(), export, bits=3, also=(1,))


def test_a_file_that_is_cut_off_is_refused(export: Path) -> None:
    path = export / FILE_NAME
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CodecError):
        load_folder(export)


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _own_code(folder: Path) -> None:
    _change(folder, auto_map={"AutoModel": "model.Mine"})


def _unknown(folder: Path) -> None:
    _change(folder, architectures=["NobodyForCausalLM"])


def _no_architecture(folder: Path) -> None:
    _change(folder, architectures=None)


def _another_shape(folder: Path) -> None:
    _change(folder, intermediate_size=96)


def _more_layers(folder: Path) -> None:
    _change(folder, num_hidden_layers=3)


def _fewer_layers(folder: Path) -> None:
    _change(folder, num_hidden_layers=1)


def _no_export(folder: Path) -> None:
    (folder / FILE_NAME).unlink()


def _change(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_no_config, "cannot be read"),
        (_own_code, "needs code of its own"),
        (_unknown, "has no NobodyForCausalLM"),
        (_no_architecture, "names no architecture"),
        (_another_shape, "has shape"),
        (_more_layers, "the file has no model.layers.2"),
        (_fewer_layers, "LlamaForCausalLM has no model.layers.1"),
        (_no_export, "deltahub export neuzip"),
    ],
)
def test_what_does_not_fit_is_told(
    export: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(export)
    with pytest.raises(CannotExport, match=message):
        load_folder(export)


def test_bits_that_the_export_lacks(export: Path) -> None:
    with pytest.raises(
        InvalidInput,
        match=r"weight was stored to be read at 1, 3 mantissa bits, not 0: give 1 or 3, .*`also 0`",
    ):
        load_folder(export, bits=0)


def test_a_module_that_does_not_fit_is_left_as_it_was(export: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4))
    before = module.state_dict()
    with pytest.raises(CannotExport, match=r"Sequential has no lm_head\.weight"):
        load_into(module, map_export(export / FILE_NAME))
    assert module.state_dict().keys() == before.keys()
    filled = trained_llama()
    load_into(filled, map_export(export / FILE_NAME))
    assert torch.equal(filled(batch()).logits, load_folder(export)(batch()).logits)
