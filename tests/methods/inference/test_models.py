"""Models of transformers that run with compressed weights: the same numbers as plain ones."""

import copy
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from deltahub.methods.errors import CannotExport
from deltahub.methods.inference.model import compress_, load_folder, resident_bytes
from deltahub.methods.inference.modules import CompressedModule
from support.models.exported import batch, train, trained_llama, write_export


@pytest.fixture(scope="module")
def lossless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(trained_llama(), tmp_path_factory.mktemp("lossless"))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(batch(3)).logits
    return found


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_lossless_export_computes_the_same(
    tmp_path: Path, dtype: torch.dtype, tied: bool
) -> None:
    plain = trained_llama(tied=tied, dtype=dtype)
    model = load_folder(write_export(plain, tmp_path, lossless=True))
    for _ in range(3):  # the second pass knows the order of the layers
        assert torch.equal(logits(model), logits(plain))
    arguments: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
    found = model.generate(batch()[:2], **arguments)  # type: ignore[operator]
    assert torch.equal(found, plain.generate(batch()[:2], **arguments))
    assert resident_bytes(model) < 0.9 * resident_bytes(plain)


def test_prefetching_changes_nothing(lossless: Path) -> None:
    plain = logits(trained_llama())
    model = load_folder(lossless, prefetch=False, threads=2)
    assert torch.equal(logits(model), plain)
    assert torch.equal(logits(model), plain)


@pytest.mark.parametrize("tied", [False, True])
def test_what_is_saved_is_plain(tmp_path: Path, tied: bool) -> None:
    plain = trained_llama(tied=tied)
    model = load_folder(write_export(plain, tmp_path / "export"))
    state, expected = model.state_dict(), plain.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], each) for name, each in expected.items())
    model.save_pretrained(tmp_path / "saved")  # type: ignore[operator]
    plain.save_pretrained(tmp_path / "plain")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype="auto")
    assert torch.equal(logits(saved), logits(plain))
    sizes = [(tmp_path / each / "model.safetensors").stat().st_size for each in ("saved", "plain")]
    assert sizes[0] == sizes[1]  # tied weights are written once


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_adapter_trains_with_the_same_losses(lossless: Path, checkpointing: bool) -> None:
    losses = []
    for model in (trained_llama(), load_folder(lossless)):
        for each in model.parameters():
            each.requires_grad_(False)
        if checkpointing:
            model.enable_input_require_grads()  # type: ignore[operator]
            model.activation_checkpointing_enable()  # type: ignore[operator]
        torch.manual_seed(9)
        tuned = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
        losses.append(train(tuned, steps=6))
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_fewer_bits_lose_more_and_take_less(tmp_path: Path) -> None:
    plain = trained_llama()
    expected = logits(plain).double()
    errors, sizes = [], []
    folder = write_export(plain, tmp_path, bits=5, also=(0, 1, 3))
    for bits in (None, 3, 1, 0):
        model = load_folder(folder, bits=bits)
        errors.append(float((logits(model).double() - expected).norm() / expected.norm()))
        sizes.append(resident_bytes(model))
    assert 0 < errors[0] < errors[1] < errors[2] < errors[3]
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3]


def test_a_model_moves_to_another_dtype(lossless: Path) -> None:
    plain, model = trained_llama().float(), load_folder(lossless).float()
    assert torch.equal(logits(model), logits(plain))
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert all(each.dtype == torch.float32 for each in model.state_dict().values())


def test_a_copy_computes_the_same(lossless: Path) -> None:
    model = load_folder(lossless)
    assert torch.equal(logits(copy.deepcopy(model)), logits(model))


def test_threads_take_turns(lossless: Path) -> None:
    model, expected = load_folder(lossless), logits(trained_llama())
    found: list[torch.Tensor] = []
    threads = [Thread(target=lambda: found.append(logits(model))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert all(torch.equal(each, expected) for each in found)


def test_any_module_is_compressed_in_place() -> None:
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=200, n_embd=64, n_layer=2, n_head=4, n_positions=40)
    plain = GPT2LMHeadModel(config).eval()
    model = compress_(copy.deepcopy(plain), lossless=True)
    ids = batch()[:, :20] % 200
    assert torch.equal(model(ids).logits, plain(ids).logits)
    kinds = {type(each).__name__ for each in model.modules() if isinstance(each, CompressedModule)}
    assert kinds == {"CompressedConv1D", "CompressedEmbedding", "CompressedLinear"}
    assert resident_bytes(model) < resident_bytes(plain)
    assert torch.equal(model.state_dict()["lm_head.weight"], plain.lm_head.weight)


def test_a_weight_that_would_change_is_refused(lossless: Path) -> None:
    model = load_folder(lossless)
    with pytest.raises(CannotExport, match="need the plain model"):
        get_peft_model(model, LoraConfig(r=4, init_lora_weights="pissa", target_modules=["q_proj"]))
    model = load_folder(lossless)
    with pytest.raises(RuntimeError, match="is compressed and cannot be overwritten"):
        model.load_state_dict(trained_llama().state_dict())


def test_nothing_is_compressed_where_one_weight_cannot_be() -> None:
    model = trained_llama()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 4] = float("nan")
    with pytest.raises(CannotExport, match=r"1\.mlp\.down_proj\.weight has infinite or NaN"):
        compress_(model, bits=3)
    assert not any(isinstance(each, CompressedModule) for each in model.modules())
    compress_(model, bits=3, keep=["*"])
    assert torch.isnan(model.model.layers[1].mlp.down_proj.weight[3, 4])


def test_an_embedding_refuses_a_row_that_it_lacks(lossless: Path) -> None:
    with pytest.raises(IndexError, match="has no row 256"):
        load_folder(lossless)(torch.tensor([[1, 256]]))
