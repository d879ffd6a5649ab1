"""An adapter as a full model, for clients that know no adapters."""

from pathlib import Path

import pytest
import torch
from huggingface_hub import snapshot_download
from peft import PeftModel
from safetensors.torch import load_file

from deltahub.client import JobFailed
from support.adapters.place import Place
from support.adapters.tuning import load_base, logits, trained_adapter


def test_a_stock_client_loads_it_without_peft(place: Place, tmp_path: Path) -> None:
    expected = trained_adapter(place.base, tmp_path / "a")
    place.ann.push(tmp_path / "a", "ann/small", base="ann/base")
    result = place.ann.merge_adapter("ann/small").wait().result
    assert result is not None
    where = {"endpoint": place.hub.url, "token": place.token, "cache_dir": tmp_path / "cache"}
    at = snapshot_download("ann/small", revision="merged", **where)
    assert not (Path(at) / "adapter_config.json").exists()
    found = logits(load_base(Path(at)))
    assert torch.allclose(found, expected, atol=1e-4)
    # PEFT's own merge, but for the order of additions.
    merged = PeftModel.from_pretrained(load_base(place.base), tmp_path / "a").merge_and_unload()
    ours = load_file(Path(at) / "model.safetensors")
    for name, weight in merged.state_dict().items():
        if name in ours:
            assert torch.allclose(ours[name], weight, atol=1e-6)
    # The adapter itself is where it was.
    assert {path.name for path in place.ann.pull("ann/small").iterdir()} >= {
        "adapter_config.json", "adapter_model.safetensors",
    }  # fmt: skip
    assert result["stored_bytes"] < (Path(at) / "model.safetensors").stat().st_size


def test_it_follows_the_adapter(place: Place, tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "a")
    place.ann.push(tmp_path / "a", "ann/moving", base="ann/base")
    first = place.ann.merge_adapter("ann/moving").wait().result
    again = place.ann.merge_adapter("ann/moving").wait().result
    assert first is not None
    assert again is not None
    assert first["commit"] == again["commit"]
    expected = trained_adapter(place.base, tmp_path / "b", r=2)
    place.ann.push(tmp_path / "b", "ann/moving", base="ann/base")
    place.ann.merge_adapter("ann/moving").wait()
    at = place.ann.pull("ann/moving", revision="merged", to=tmp_path / "m")
    assert torch.allclose(logits(load_base(at)), expected, atol=1e-4)


def test_one_that_changed_its_base_is_refused(place: Place, tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "a", init_lora_weights="pissa")
    place.ann.push(tmp_path / "a", "ann/changed", base="ann/base")
    with pytest.raises(JobFailed, match="deltahub adapter convert ann/changed"):
        place.ann.merge_adapter("ann/changed").wait()
    with pytest.raises(JobFailed, match="is a full model already"):
        place.ann.merge_adapter("ann/base").wait()
