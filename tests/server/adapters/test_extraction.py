"""A LoRA made of a full fine-tune."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from deltahub.client import InvalidRequest, JobFailed
from support.adapters.place import Place
from support.adapters.tuning import load_base, logits
from support.models.tiny_llamas import files


@pytest.fixture(scope="module")
def tuned(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned") / "m"
    folder.mkdir()
    for name, data in files("next").items():
        (folder / name).write_bytes(data)
    place.ann.push(folder, "ann/tuned", base="ann/base")
    return folder


def test_the_adapter_is_the_best_one_of_its_rank(place: Place, tuned: Path) -> None:
    job = place.ann.extract_adapter("ann/tuned", "ann/extracted", rank=8).wait()
    assert job.result is not None
    report = job.result["extraction"]
    made = load_file(place.ann.pull("ann/extracted") / "adapter_model.safetensors")
    base, model = (load_file(each / "model.safetensors") for each in (place.base, tuned))
    lost = changed = whole = 0.0
    for name, weight in model.items():
        change = (weight - base[name]).double().numpy()
        module = name.removesuffix(".weight")
        whole += float((change**2).sum())
        if f"base_model.model.{module}.lora_A.weight" in made:
            values = np.linalg.svd(change, compute_uv=False)
            lost += float((values[8:] ** 2).sum())
            changed += float((change**2).sum())
    assert report["error"] == pytest.approx((lost / changed) ** 0.5, rel=0.01)
    expected = ((lost + whole - changed) / whole) ** 0.5
    assert report["whole_error"] == pytest.approx(expected, rel=0.01)
    assert "lm_head.weight" in report["left_out"]


def test_an_error_is_kept_and_peft_loads_it(place: Place, tuned: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    job = place.ann.extract_adapter("ann/tuned", "ann/near", error=0.01).wait()
    assert job.result is not None
    assert job.result["extraction"]["error"] <= 0.0101
    base = load_base(place.base)
    whole = load_file(tuned / "model.safetensors")
    found = PeftModel.from_pretrained(base, place.ann.pull("ann/near", to=tmp_path / "a"))
    model = load_base(tuned)
    with torch.no_grad():  # what no adapter of matrices holds
        for name, each in base.named_parameters():
            plain = name.replace("base_model.model.", "").replace(".base_layer", "")
            if "lora_" not in name and plain in job.result["extraction"]["left_out"]:
                each.copy_(whole[plain])
    assert torch.allclose(
        logits(found), logits(model), atol=0.02 * float(logits(model).abs().max())
    )


def test_a_model_without_a_base_is_refused(place: Place) -> None:
    with pytest.raises(InvalidRequest, match="names no base: push the base, and name it by --base"):
        place.ann.extract_adapter("ann/base", "ann/none")
    with pytest.raises(JobFailed, match="have no tensor of one name and shape that differs"):
        place.ann.extract_adapter("ann/base", "ann/none", base="ann/base").wait()
