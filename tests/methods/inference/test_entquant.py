"""Models of transformers whose weights are whole numbers with a step for each row."""

from pathlib import Path

import pytest
import torch
from torch import nn

from deltahub.codecs.errors import CodecError, InvalidInput
from deltahub.codecs.exports.file import FILE_NAME, map_export
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.methods.errors import CannotExport
from deltahub.methods.inference.model import compress_, load_folder
from deltahub.methods.inference.modules import CompressedModule
from support.models.exported import batch, trained_llama, write_export

UP = "model.layers.1.mlp.up_proj.weight"


def compressed(model: nn.Module) -> dict[str, CompressedModule]:
    return {m.source.name: m for m in model.modules() if isinstance(m, CompressedModule)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_loaded_export_and_a_model_compressed_in_memory_are_the_same(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    plain = trained_llama(dtype=dtype)
    model = load_folder(write_export(plain, tmp_path, method="entquant", bits=3))
    other = compress_(trained_llama(dtype=dtype), method="entquant", bits=3)
    with torch.no_grad():
        assert torch.equal(model(batch(3)).logits, other(batch(3)).logits)
    export = map_export(tmp_path / FILE_NAME)
    integers = {
        name for name, each in export.weights.items() if isinstance(each.coding, IntegerCoding)
    }
    assert UP in integers
    assert not {"model.embed_tokens.weight", "lm_head.weight"} & integers
    size = sum(export.weights[name].size_bytes() for name in integers)
    count = sum(export.weights[name].count for name in integers)
    assert 8 * size / count == pytest.approx(3, abs=0.1)
    state = model.state_dict()
    assert torch.equal(state["lm_head.weight"], plain.state_dict()["lm_head.weight"])


def test_fewer_bits_lose_more() -> None:
    plain = trained_llama().state_dict()
    errors = []
    for bits in (4, 3, 2):
        state = compress_(trained_llama(), method="entquant", bits=bits).state_dict()
        lost = sum(float((state[name] - each).float().norm()) for name, each in plain.items())
        errors.append(lost)
    assert 0 < errors[0] < errors[1] < errors[2]


def test_rows_decode_alone() -> None:
    model = compress_(trained_llama(), method="entquant", bits=2, keep=["none"])
    source = compressed(model)["model.embed_tokens.weight"].source
    rows = torch.tensor([0, 3, 4, 255])
    assert torch.equal(source.decode_rows(rows), source.decode()[rows])


def test_tied_weights_stay_tied() -> None:
    model = compress_(trained_llama(tied=True), method="entquant", bits=4, keep=["none"])
    assert model.lm_head.source is model.model.embed_tokens.source  # type: ignore[union-attr]


def test_a_damaged_weight_is_named(tmp_path: Path) -> None:
    export = write_export(trained_llama(), tmp_path, method="entquant", bits=3)
    path = export / FILE_NAME
    weight = map_export(path).weights[UP]
    good = path.read_bytes()
    for part in weight.coding.parts:
        payload = bytes(weight.slices[0][part].body[-60:])
        data = bytearray(good)
        data[data.index(payload) + 30] ^= 4
        path.write_bytes(data)
        with pytest.raises(CodecError, match=rf"^{UP}: .*again".replace(".", r"\.", 4)):
            load_folder(export)(batch())


def test_it_is_read_at_the_bits_it_has(tmp_path: Path) -> None:
    export = write_export(trained_llama(), tmp_path, method="entquant", bits=3)
    for bits in (3, 7, 8):
        with pytest.raises(InvalidInput, match=r"weight consists of integers .*leave bits out"):
            load_folder(export, bits=bits)


def test_a_gpu_is_refused_by_the_name_of_the_method(tmp_path: Path) -> None:
    export = write_export(trained_llama(), tmp_path, method="entquant", bits=3)
    with pytest.raises(CannotExport, match=r"\(entquant\), which are decoded on a CPU alone"):
        load_folder(export, device="cuda")
    model = load_folder(export)
    with pytest.raises(CannotExport, match=r"\(entquant\), which are decoded on a CPU alone"):
        model.to("cuda")
    assert model(batch(3)).logits.isfinite().all()  # it did not move


def test_what_cannot_become_integers_is_refused_by_name() -> None:
    model = trained_llama()
    with pytest.raises(CannotExport, match="no weight that may be rounded"):
        compress_(model, method="entquant", bits=3, keep=["*"])
    with torch.no_grad():
        model.get_parameter(UP)[2, 3] = float("nan")
    with pytest.raises(CannotExport, match=f"{UP} has infinite or NaN elements"):
        compress_(model, method="entquant", bits=3)
    assert not compressed(model)
