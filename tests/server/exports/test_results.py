"""An export is an ordinary repository, which says where it is from and how it is loaded."""

import pytest
import torch
from huggingface_hub import HfApi, snapshot_download
from transformers import AutoModelForCausalLM

from deltahub.client import NotFound
from support.exporting.place import Place
from support.service.client_process import deltahub


@pytest.fixture(scope="module")
def export(place: Place) -> str:
    place.model("bf16")
    place.export("bf16", "result", bits=3)
    return "ann/result"


def test_a_stock_client_sees_files_tags_and_the_base(
    place: Place, export: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    api = HfApi(place.hub.url, token=place.token)
    info = api.model_info(export)
    assert {"neuzip", "base_model:ann/bf16"} <= {*(info.tags or [])}
    assert "model.neuzip.safetensors" in {each.rfilename for each in info.siblings or []}
    at = snapshot_download(
        export, endpoint=place.hub.url, token=place.token,
        cache_dir=tmp_path_factory.mktemp("stock"),
    )  # fmt: skip
    for path in place.ann.pull(export).iterdir():
        with open(f"{at}/{path.name}", "rb") as file:
            assert file.read() == path.read_bytes()


def test_transformers_finds_no_weights_rather_than_wrong_ones(place: Place, export: str) -> None:
    folder = place.ann.pull(export)
    with pytest.raises(OSError, match=r"model\.safetensors"):
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)


def test_lineage_leads_to_the_model(place: Place, export: str) -> None:
    links = [each for each in place.ann.lineage(export).links if each.declared]
    assert [each.parent for each in links if each.child == export] == ["ann/bf16"]
    assert export in {each.name for each in place.ann.search(role="export")}


def test_a_dry_run_estimates_and_makes_nothing(place: Place) -> None:
    place.model("bf16")
    job = place.ann.export_neuzip("ann/bf16", "ann/dry", bits=3, dry_run=True).wait()
    assert job.result is not None
    estimate = job.result["estimate"]
    assert 0 < estimate["export_bytes"] < estimate["plain_bytes"]
    _, report = place.export("bf16", "dry-done", bits=3)
    assert estimate["n_weights"] == len(report["weights"])
    assert estimate["plain_bytes"] == report["plain_bytes"]
    with pytest.raises(NotFound):
        place.ann.repository("ann/dry")


def test_the_export_of_a_private_model_is_private(place: Place) -> None:
    place.model("hidden")
    place.ann.set_private("ann/hidden", True)
    place.export("hidden", "hidden-export")
    assert place.ann.repository("ann/hidden-export").private
    eve = place.hub.user("eve")
    path = "/v1/repositories/ann/hidden-export"
    assert place.hub.call("GET", path, token=eve).status == 404


def test_the_command_exports_and_says_what_came_of_it(place: Place) -> None:
    place.model("bf16")
    told = deltahub(
        "export", "neuzip", "ann/bf16", "--name", "ann/by-command", "--bits", "3",
        environment=place.environment,
    )  # fmt: skip
    assert told.status == 0, told.err
    assert "made ann/by-command@" in told.out
    assert "weights are rounded" in told.out
