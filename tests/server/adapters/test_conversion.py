"""Adapters that changed their base become plain LoRA of the base itself, whoever loads them."""

import json
import shutil
import warnings
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, snapshot_download
from safetensors.torch import load_file, save_file

from deltahub.client import Hub, InvalidRequest, JobFailed
from deltahub.client.errors import Forbidden
from deltahub.client.transfer import pissa_model
from support.adapters.place import Place
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
        ({"init_lora_weights": "pissa_niter_4"}, "push the initial adapter beside it.*by --init"),
        ({"init_lora_weights": "pissa", "use_dora": True}, "DoRA scales"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_the_way_out(
    place: Place, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    name = f"ann/{tmp_path.name[:60].replace('[', '-')}"
    trained_adapter(place.base, tmp_path / "adapter", **options)
    push_by_hf(place, tmp_path / "adapter", name)
    place.report_of(name)
    with pytest.raises(InvalidRequest, match=said):
        place.ann.convert_adapter(name)
    assert [each.kind for each in place.ann.refs(name)] == ["branch"]


def test_an_adapter_of_another_base_is_refused(place: Place, tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "adapter", init_lora_weights="pissa")
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    torch.manual_seed(1)
    save_file({k: torch.randn_like(v) for k, v in load_file(path).items()}, path, {"format": "pt"})
    push_by_hf(place, tmp_path / "adapter", "ann/stranger")
    with pytest.raises(JobFailed, match="little to do with the initial factors"):
        place.ann.convert_adapter("ann/stranger").wait()


def test_a_number_that_is_none_is_refused(place: Place, tmp_path: Path) -> None:
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
    pushed = (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes()
    assert report["adapter_sha256"] == sha256(pushed).hexdigest()
    raw = place.ann.adapter_report("ann/told", f"pushed-{report['adapter'][-40:][:12]}")
    assert report["base_digest"] == raw["base_digest"]
    assert report["init"] == "pissa"
    assert report["error"] == 0


def test_a_private_base_leaves_no_trace_in_a_public_adapter(place: Place, tmp_path: Path) -> None:
    place.ann.push(place.base, "ann/secret", private=True)
    trained_adapter(place.base, tmp_path / "a", init_lora_weights="pissa")
    place.ann.push(tmp_path / "a", "ann/open", base="ann/secret")
    assert place.report_of("ann/open")["base"]["commit"] is None
    with pytest.raises(InvalidRequest, match="is private, and the result would put a part"):
        place.ann.convert_adapter("ann/open")
    place.ann.set_private("ann/open", True)
    place.ann.convert_adapter("ann/open").wait()


def test_an_adapter_whose_base_is_not_here_says_so(place: Place, tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "a", init_lora_weights="pissa")
    place.ann.push(tmp_path / "a", "ann/orphan", base="ann/nowhere")
    assert place.report_of("ann/orphan")["state"] == "quarantined"
    with pytest.raises(InvalidRequest, match=r"names ann/nowhere as its base, which this hub la"):
        place.ann.convert_adapter("ann/orphan")
    place.ann.convert_adapter("ann/orphan", base="ann/base").wait()


def test_embeddings_biases_and_copies_of_the_base_stay(place: Place, tmp_path: Path) -> None:
    expected = trained_adapter(
        place.base, tmp_path / "a", init_lora_weights="pissa", bias="lora_only",
        target_modules=["q_proj", "embed_tokens"], r=2,
    )  # fmt: skip
    names = load_file(tmp_path / "a" / "adapter_model.safetensors").keys()
    assert any(name.endswith("embed_tokens.base_layer.weight") for name in names)
    push_by_hf(place, tmp_path / "a", "ann/embedded")
    job = place.ann.convert_adapter("ann/embedded", rank=1).wait()
    assert job.result is not None
    assert job.result["conversion"]["rank"] == 2  # of the embeddings, which stay as they are
    place.ann.push(tmp_path / "a", "ann/embedded", base="ann/base")
    place.ann.convert_adapter("ann/embedded").wait()
    converted = pulled_logits(place, "ann/embedded", tmp_path / "cache")
    assert torch.allclose(converted, expected, atol=1e-4)


def test_the_factors_of_a_private_kit_stay_private(place: Place, tmp_path: Path) -> None:
    place.ann.pissa_init("ann/base", rank=4, name="ann/own-kit", private=True).wait()
    model = pissa_model(place.ann, "ann/base", kit="ann/own-kit")
    train(model)
    model.save_pretrained(tmp_path / "a", save_embedding_layers=False)
    place.ann.push(tmp_path / "a", "ann/from-own-kit", base="ann/base")
    with pytest.raises(JobFailed, match="is private, and the result would put a part"):
        place.ann.convert_adapter("ann/from-own-kit").wait()


def test_a_base_that_moved_is_noticed(place: Place, tmp_path: Path) -> None:
    base = shutil.copytree(place.base, tmp_path / "base")
    place.ann.push(base, "ann/moved")
    commit = place.ann.revision("ann/moved").commit
    trained_adapter(base, tmp_path / "a", init_lora_weights="pissa")
    config = tmp_path / "a" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "revision": commit}))
    weights = load_file(base / "model.safetensors")
    save_file({name: each * 1.01 for name, each in weights.items()}, base / "model.safetensors")
    place.ann.push(base, "ann/moved")
    place.ann.push(tmp_path / "a", "ann/of-moved", base="ann/moved")
    assert place.report_of("ann/of-moved")["base"]["differs"]
    with pytest.raises(InvalidRequest, match="whose weights are not those of"):
        place.ann.convert_adapter("ann/of-moved")
    place.ann.convert_adapter("ann/of-moved", base=f"ann/moved@{commit}").wait()


def test_what_was_not_trained_needs_no_rank(place: Place, tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "a", init_lora_weights="pissa", with_init=True)
    path = tmp_path / "a" / "adapter_model.safetensors"
    init = load_file(tmp_path / "a" / "pissa_init" / "adapter_model.safetensors")
    tensors = load_file(path)
    name = min(tensors)  # A of one module learns in one direction, nothing else does
    learnt = {**init, name: init[name] + 0.1 * torch.ones_like(init[name])}
    save_file(learnt, path, {"format": "pt"})
    push_by_hf(place, tmp_path / "a", "ann/idle")
    job = place.ann.convert_adapter("ann/idle", error=1e-3).wait()
    assert job.result is not None
    assert job.result["conversion"]["rank"] == 1


def test_who_may_not_write_is_refused_before_the_work(place: Place, tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "a", init_lora_weights="pissa")
    place.ann.push(tmp_path / "a", "ann/not-yours", base="ann/base")
    with Hub(place.hub.url, place.hub.user("mallory")) as other:
        for ask in (other.convert_adapter, other.merge_adapter):
            with pytest.raises(Forbidden, match="mallory"):
                ask("ann/not-yours")
