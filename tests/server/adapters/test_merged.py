"""An adapter as a full model, for clients that know no adapters."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from peft import PeftModel
from safetensors.torch import load_file

from deltahub.client import InvalidRequest
from support.adapters.place import Place
from support.adapters.tuning import load_base, logits, trained_adapter
from support.service.client_process import deltahub


def test_a_stock_client_loads_it_without_peft(place: Place, tmp_path: Path) -> None:
    expected = trained_adapter(place.base, tmp_path / "a")
    place.ann.push(tmp_path / "a", "ann/small", base="ann/base")
    told = deltahub("adapter", "merge", "ann/small", "--dry-run", environment=place.environment)
    assert told.status == 0, told.err
    assert "the branch stores them as differences" in told.out
    assert "of memory" in told.out
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


def test_its_name_is_reserved_by_every_door(place: Place, tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "a")
    # A branch of this name, as any model may have it, before the repository holds an adapter.
    place.ann.push(place.base, "ann/reserved")
    place.ann.push(place.base, "ann/reserved", revision="merged")
    place.ann.push(tmp_path / "a", "ann/reserved", base="ann/base", mirror=True)
    assert place.report_of("ann/reserved")["state"] == "plain"
    api = HfApi(place.hub.url, place.token)
    card = tmp_path / "card.md"
    card.write_text("mine")

    def upload() -> None:
        api.upload_file(path_or_fileobj=card, path_in_repo="card.md", repo_id="ann/reserved",
                        revision="merged")  # fmt: skip

    refusals: list[tuple[type[Exception], Callable[[], object]]] = [
        (InvalidRequest, lambda: place.ann.push(tmp_path / "a", "ann/reserved", revision="merged")),
        (HfHubHTTPError, upload),
        (HfHubHTTPError, lambda: api.create_tag("ann/reserved", tag="merged")),
    ]
    for error, door in refusals:
        with pytest.raises(error, match="merged is reserved in ann/reserved"):
            door()
    # Whoever made it may remove it, but nobody can make it again, other than the hub.
    api.delete_branch("ann/reserved", branch="merged")
    for error, door in [
        refusals[0],
        refusals[2],
        (HfHubHTTPError, lambda: api.create_branch("ann/reserved", branch="merged")),
    ]:
        with pytest.raises(error, match="merged is reserved in ann/reserved"):
            door()
    place.ann.merge_adapter("ann/reserved").wait()
    assert "merged" in {each.name for each in place.ann.refs("ann/reserved")}


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
    place.report_of("ann/changed")
    with pytest.raises(InvalidRequest, match="deltahub adapter convert ann/changed"):
        place.ann.merge_adapter("ann/changed")
    with pytest.raises(InvalidRequest, match="is a full model already"):
        place.ann.merge_adapter("ann/base")
