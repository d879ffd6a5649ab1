"""Wrong arguments are refused with the limit and the way out, and nothing is changed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from deltahub.codecs.errors import InvalidInput, NoGpu
from deltahub.codecs.exports.file import FILE_NAME, map_export
from deltahub.methods.errors import CannotExport
from deltahub.methods.inference.cards import card_for
from deltahub.methods.inference.model import compress_, load_folder, load_into
from deltahub.methods.inference.modules import CompressedModule
from deltahub.methods.kinds.weights.choice import MIN_ELEMENTS
from support.models.exported import trained_llama, write_export


def small() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(96, 96), nn.Linear(96, 96)).bfloat16()


def sources(model: nn.Module) -> dict[str, Any]:
    return {m.source.name: m.source for m in model.modules() if isinstance(m, CompressedModule)}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export whose weights have bits of their own, and may be read at 1, too."""
    folder = tmp_path_factory.mktemp("auto")
    return write_export(trained_llama(), folder, bits="auto", budget=6.0, also=(1,))


def test_weights_of_several_bits_are_read_at_a_level_that_all_can_be_read_at(chosen: Path) -> None:
    stored = {name: each.coding for name, each in map_export(chosen).weights.items()}
    bits = {name: how.bits for name, how in stored.items() if len(how.levels) > 1}
    most = max(bits.values())
    assert len({*bits.values()}) > 1
    assert most < 7
    for name, source in sources(load_folder(chosen, bits=1)).items():
        assert source.bits == (1 if name in bits else None)
    assert all(each.bits is None for each in sources(load_folder(chosen, bits=most)).values())
    with pytest.raises(InvalidInput) as refused:
        load_folder(chosen, bits=2)
    name, _, told = str(refused.value).partition(" was stored to be read at ")
    assert 2 not in stored[name].levels
    assert told.startswith(f"1, {bits[name]} mantissa bits, not 2: give 1 or {most}, or leave bits")


def test_more_bits_than_are_stored_are_refused(tmp_path: Path) -> None:
    folder = write_export(trained_llama(), tmp_path, bits=3)
    with pytest.raises(InvalidInput, match=r"was stored to be read at 3 .*, not 7: give 3, or"):
        load_folder(folder, bits=7)  # which the embeddings have, kept lossless
    exact = write_export(trained_llama(), tmp_path / "exact")
    load_folder(exact, bits=7)
    with pytest.raises(InvalidInput, match=r"is lossless, and its .* not at 3 .*`also 3`"):
        load_folder(exact, bits=3)


@pytest.mark.parametrize("bits", [-1, 2.0, "3", True])
def test_what_is_no_number_of_bits_is_refused(chosen: Path, bits: Any) -> None:
    with pytest.raises(InvalidInput, match="is no number of mantissa bits"):
        load_folder(chosen, bits=bits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 9}, "bits: Input should be '7', '5'"),
        ({"bits": 4}, "neuzip takes 7, 5, 3, 1, 0, auto bits, not 4"),
        ({"block": 3}, "block 3: a power of two"),
        ({"budget": 4.0}, "bits auto and a budget belong together"),
        ({"bits": "auto"}, "bits auto and a budget belong together"),
        ({"keep": [3]}, "keep.0: Input should be a valid string"),
        ({"method": "gptq"}, "method: Input should be 'neuzip' or 'entquant'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    model = small()
    with pytest.raises(InvalidInput, match=message) as refused:
        compress_(model, **options)
    assert "a/b" not in str(refused.value)
    assert not sources(model)


@pytest.mark.parametrize("tied", [False, True])
def test_a_budget_in_memory_is_kept(tied: bool) -> None:
    model = compress_(trained_llama(tied=tied), bits="auto", budget=6.0, keep="none")
    weights = {id(each): each.weight for each in sources(model).values()}.values()
    count = sum(each.count for each in weights)
    assert 5.5 * count < 8 * sum(each.size_bytes() for each in weights) <= 6 * count
    assert len({each.coding.bits for each in weights}) > 1
    with pytest.raises(CannotExport, match="budget of 1 bits an element is too small"):
        compress_(small(), bits="auto", budget=1)


def test_one_name_is_kept_without_a_list() -> None:
    model = compress_(small(), bits=3, keep="1.weight")
    assert {name: each.weight.coding.bits for name, each in sources(model).items()} == {
        "0.weight": 3,
        "1.weight": 7,
    }
    compress_(small(), bits=3, keep="none")
    with pytest.raises(CannotExport, match=r"has no tensor 2\.weight"):
        compress_(small(), bits=3, keep="2.weight")


def test_what_is_compressed_already_is_said_to_be(chosen: Path) -> None:
    model = nn.Sequential(small(), nn.Linear(8, 8), nn.Linear(80, 80))
    assert 8 * 8 < MIN_ELEMENTS < 80 * 80
    compress_(model[0])
    compress_(model)  # the rest
    with pytest.raises(CannotExport, match="Sequential is compressed already"):
        compress_(model)
    with pytest.raises(CannotExport, match=r"weight of LlamaForCausalLM is compressed already"):
        load_into(load_folder(chosen), map_export(chosen / FILE_NAME))


def test_devices_that_are_none_or_not_here_are_refused(chosen: Path) -> None:
    for device in ("foo", "cuda:x", None):
        with pytest.raises(InvalidInput, match="is no device: give cpu, or cuda"):
            load_folder(chosen, device=device)  # type: ignore[arg-type]
    with pytest.raises(CannotExport, match="not on mps"):
        load_folder(chosen, device="mps")
    if torch.cuda.is_available():
        with pytest.raises(NoGpu, match="there is no cuda:99"):
            card_for(torch.device("cuda:99"))
        return
    model = load_folder(chosen)
    with pytest.raises(NoGpu, match="torch finds no GPU"):
        model.to("cuda")
    model.to(torch.float32)


def test_a_model_shows_which_weights_are_compressed() -> None:
    config = GPT2Config(vocab_size=200, n_embd=64, n_layer=1, n_head=4, n_positions=40)
    shown = str(compress_(GPT2LMHeadModel(config), lossless=True))
    assert "(c_attn): CompressedConv1D(64x192, compressed=" in shown
    assert "(lm_head): CompressedLinear(in_features=64, out_features=200, bias=False, comp" in shown
