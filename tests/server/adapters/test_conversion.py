"""Adapters that changed their base become plain LoRA of the base itself, whoever loads them."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, snapshot_download
from safetensors.torch import load_file

from deltahub.client import JobFailed
from deltahub.client.transfer import pissa_model
from support.adapters.place import Place, report_of
from support.adapters.tuning import load_base, logits, train, trained_adapter


def push_by_hf(place: Place, folder: Path, name: str) -> None:
    """As a client of Hugging Face does it, with the base in the model card."""
    card = f"---\nbase_model: ann/base\nlibrary_name: peft\n---\n# {name}\n"
    (folder / "README.md").write_text(card)
    api = HfApi(endpoint=place.hub.url, token=place.token)
    api.create_repo(name, exist_ok=True)
    api.upload_folder(repo_id=name, folder_path=folder)


def pulled_logits(place: Place, name: str, folder: Path, revision: str = "main") -> torch.Tensor:
    """Of the original base with the adapter as a client of Hugging Face pulls it."""
    from peft import PeftModel

    at = snapshot_download(
        name, revision=revision, endpoint=place.hub.url, token=place.token,
        cache_dir=folder,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return logits(PeftModel.from_pretrained(load_base(place.base), at))


@pytest.mark.parametrize(
    ("init", "options", "error"),
    [
        ("pissa", {}, 2e-4),
        ("pissa", {"use_rslora": True}, 2e-4),
        ("pissa", {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 4}}, 2e-4),
        ("olora", {}, 2e-4),
        ("pissa_niter_4", {"with_init": True}, 2e-4),
    ],
)
def test_a_converted_adapter_acts_as_it_was_trained(
    place: Place, tmp_path: Path, init: str, options: dict[str, Any], error: float
) -> None:
    name = f"ann/{tmp_path.name.replace('[', '-').replace(']', '')[:60]}"
    folder = tmp_path / "adapter"
    expected = trained_adapter(place.base, folder, init_lora_weights=init, **options)
    push_by_hf(place, folder, name)
    pushed = load_file(folder / "adapter_model.safetensors")
    job = place.ann.convert_adapter(name).wait()
    assert job.result is not None
    converted = pulled_logits(place, name, tmp_path / "cache")
    assert torch.allclose(converted, expected, atol=error * float(expected.abs().max()))
    # The bytes that were pushed are a tag's.
    (tag,) = [each for each in place.ann.refs(name) if each.kind == "tag"]
    raw = place.ann.pull(name, revision=tag.name, to=tmp_path / "raw")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == {
        path.name: path.read_bytes()
        for path in raw.iterdir()
        if path.is_file() and path.name in {each.name for each in folder.iterdir()}
    }
    assert load_file(raw / "adapter_model.safetensors").keys() == pushed.keys()
    if init == "pissa_niter_4":
        wrong = pulled_logits(place, name, tmp_path / "cache", tag.name)
        assert float((wrong - expected).abs().max()) > 100 * error * float(expected.abs().max())


def test_an_adapter_of_a_kit_is_converted_by_its_name(place: Place, tmp_path: Path) -> None:
    model = pissa_model(place.ann, "ann/base", rank=4)
    train(model)
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    expected = logits(model)
    push_by_hf(place, tmp_path / "adapter", "ann/of-kit")
    job = place.ann.convert_adapter("ann/of-kit").wait()
    assert job.result is not None
    assert job.result["conversion"]["source"].startswith("ann/base-pissa-r4")
    converted = pulled_logits(place, "ann/of-kit", tmp_path / "cache")
    assert torch.allclose(converted, expected, atol=1e-4)


def test_few_bits_do_not_ruin_the_update(place: Place, tmp_path: Path) -> None:
    expected = trained_adapter(place.base, tmp_path / "adapter", init_lora_weights="pissa")
    push_by_hf(place, tmp_path / "adapter", "ann/half")
    job = place.ann.convert_adapter("ann/half", dtype="BF16", error=1e-3).wait()
    assert job.result is not None
    report = job.result["conversion"]
    assert report["rank"] <= 8
    assert report["error"] < 5e-3
    converted = pulled_logits(place, "ann/half", tmp_path / "cache")
    assert torch.allclose(converted, expected, atol=0.02 * float(expected.abs().max()))


def test_heads_are_kept(place: Place, tmp_path: Path) -> None:
    expected = trained_adapter(
        place.base, tmp_path / "adapter", init_lora_weights="pissa", modules_to_save=["lm_head"]
    )
    push_by_hf(place, tmp_path / "adapter", "ann/head")
    job = place.ann.convert_adapter("ann/head").wait()
    assert job.result is not None
    assert job.result["conversion"]["kept"] == ["base_model.model.lm_head.weight"]
    converted = pulled_logits(place, "ann/head", tmp_path / "cache")
    assert torch.allclose(converted, expected, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"init_lora_weights": True}, "plain LoRA already"),
        ({"init_lora_weights": "pissa_niter_4"}, "push those that PEFT saved before training"),
        ({"init_lora_weights": "pissa", "use_dora": True}, "DoRA scales"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_the_way_out(
    place: Place, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    name = f"ann/{tmp_path.name[:60].replace('[', '-')}"
    trained_adapter(place.base, tmp_path / "adapter", **options)
    push_by_hf(place, tmp_path / "adapter", name)
    with pytest.raises(JobFailed, match=said):
        place.ann.convert_adapter(name).wait()
    assert [each.kind for each in place.ann.refs(name)] == ["branch"]


def test_an_adapter_of_another_base_is_refused(place: Place, tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "adapter", init_lora_weights="pissa")
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    from safetensors.torch import save_file

    torch.manual_seed(1)
    save_file({k: torch.randn_like(v) for k, v in load_file(path).items()}, path, {"format": "pt"})
    push_by_hf(place, tmp_path / "adapter", "ann/stranger")
    with pytest.raises(JobFailed, match="little to do with the initial factors"):
        place.ann.convert_adapter("ann/stranger").wait()


def test_a_number_that_is_none_is_refused(place: Place, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    trained_adapter(place.base, tmp_path / "adapter", init_lora_weights="pissa")
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(path)
    next(iter(tensors.values()))[0, 0] = torch.nan
    save_file(tensors, path, {"format": "pt"})
    push_by_hf(place, tmp_path / "adapter", "ann/odd")
    with pytest.raises(JobFailed, match="infinite or NaN"):
        place.ann.convert_adapter("ann/odd").wait()


def test_the_config_says_what_the_result_is(place: Place, tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "adapter", init_lora_weights="pissa", use_rslora=True)
    push_by_hf(place, tmp_path / "adapter", "ann/told")
    place.ann.convert_adapter("ann/told").wait()
    folder = place.ann.pull("ann/told")
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["r"] == config["lora_alpha"] == 8
    assert config["init_lora_weights"] is True
    assert not config["use_rslora"]
    assert config["base_model_name_or_path"] == "ann/base"
    report = json.loads((folder / "conversion.json").read_text())
    assert report["init"] == "pissa"
    assert report["error"] == 0


def test_a_private_base_leaves_no_trace_in_a_public_adapter(place: Place, tmp_path: Path) -> None:
    place.ann.push(place.base, "ann/secret", private=True)
    trained_adapter(place.base, tmp_path / "a", init_lora_weights="pissa")
    place.ann.push(tmp_path / "a", "ann/open", base="ann/secret")
    assert report_of(place, "ann/open")["base"]["commit"] is None
    with pytest.raises(JobFailed, match="is private, and the result would put a part"):
        place.ann.convert_adapter("ann/open").wait()
    place.ann.set_private("ann/open", True)
    place.ann.convert_adapter("ann/open").wait()


def test_an_adapter_whose_base_is_not_here_says_so(place: Place, tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "a", init_lora_weights="pissa")
    place.ann.push(tmp_path / "a", "ann/orphan", base="ann/nowhere")
    assert report_of(place, "ann/orphan")["state"] == "quarantined"
    with pytest.raises(JobFailed, match=r"names ann/nowhere as its base, which this hub lacks"):
        place.ann.convert_adapter("ann/orphan").wait()
    place.ann.convert_adapter("ann/orphan", base="ann/base").wait()
