"""A lossless export has every weight bit for bit, however the hub stores the model."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from deltahub.client.inference import load
from support.exporting.llamas import logits
from support.exporting.place import Place, assert_lossless

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_weight_decodes_to_the_bits_that_it_had(place: Place, dtype: str) -> None:
    tensors = place.model(dtype, dtype=DTYPES[dtype])
    export, report = place.export(dtype, f"{dtype}-exact", lossless=True)
    assert_lossless(export, tensors)
    assert {each["error"] for each in report["weights"]} == {0}
    assert report["export_bytes"] < report["plain_bytes"]
    # Norms have one dimension: they lie in the file as they were.
    assert "model.norm.weight" in export.plain
    assert "model.norm.weight" in report["plain"]
    plain = AutoModelForCausalLM.from_pretrained(place.folder(dtype), dtype=DTYPES[dtype])
    assert torch.equal(logits(load(f"ann/{dtype}-exact", hub=place.ann)), logits(plain))


def test_a_fine_tune_that_is_stored_as_a_difference_is_exported(place: Place) -> None:
    place.model("bf16")
    tensors = place.model("tuned", base="ann/bf16", steps=3)
    files = place.ann.info("ann/tuned")["files"]
    assert "fm_delta" in {each["codec"] for file in files for each in file.get("tensors") or ()}
    export, _ = place.export("tuned", "tuned-exact")
    assert_lossless(export, tensors)


def test_tied_embeddings_are_stored_once_and_stay_tied(place: Place) -> None:
    tensors = place.model("tied", is_tied=True)
    export, report = place.export("tied", "tied-exact")
    assert "lm_head.weight" not in {*export.weights, *export.plain}
    tensors.pop("lm_head.weight")  # which save_pretrained leaves out, too
    assert_lossless(export, tensors)
    plain = AutoModelForCausalLM.from_pretrained(place.folder("tied"), dtype=torch.bfloat16)
    model = load("ann/tied-exact", hub=place.ann)
    assert torch.equal(logits(model), logits(plain))
    names = [each["name"] for each in report["weights"]]
    assert len(names) == len({*names})


def test_shards_become_one_file(place: Place) -> None:
    tensors = place.model("sharded", max_shard_size="100KB")
    assert len(list(place.folder("sharded").glob("*.safetensors"))) == 2
    export, _ = place.export("sharded", "sharded-exact")
    assert_lossless(export, tensors)
    files = {path.name for path in place.ann.pull("ann/sharded-exact").iterdir()}
    assert {each for each in files if "safetensors" in each} == {"model.neuzip.safetensors"}


def test_files_that_are_no_weights_come_along(place: Place) -> None:
    place.model("bf16")
    place.export("bf16", "beside")
    before, after = place.folder("bf16"), place.ann.pull("ann/beside")
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (after / name).read_bytes() == (before / name).read_bytes()
    card = (after / "README.md").read_text()
    # A person may rely on what the model's own card says of it.
    assert "license: apache-2.0" in card.replace('"', "")
    assert "pipeline_tag: text-generation" in card.replace('"', "")
    assert "base_model: ann/bf16" in card
    assert "Of foxes." in card
    assert 'load("ann/beside")' in card
    report = json.loads((after / "neuzip.json").read_text())
    assert report["model"].startswith("ann/bf16@")
