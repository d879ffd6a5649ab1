"""An export, from the job to the model that runs with its weights compressed."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from deltahub.client.inference import load, resident_bytes
from support.exporting.llamas import logits
from support.exporting.place import assert_lossless, export_place


def test_a_lossless_export_runs_as_the_model_does_and_one_of_three_bits_nearly(
    tmp_path: Path,
) -> None:
    with export_place(tmp_path) as place:
        tensors = place.model("fox")
        plain = AutoModelForCausalLM.from_pretrained(place.folder("fox"), dtype=torch.bfloat16)
        expected = logits(plain)
        export, report = place.export("fox", "exact")
        assert_lossless(export, tensors)
        assert report["export_bytes"] < report["plain_bytes"]
        exact = load("ann/exact", hub=place.ann)
        assert torch.equal(logits(exact), expected)
        assert resident_bytes(exact) < resident_bytes(plain)
        place.export("fox", "rounded", bits=3)
        rounded = load("ann/rounded", hub=place.ann)
        assert resident_bytes(rounded) < resident_bytes(exact)
        difference = (logits(rounded) - expected).float().norm() / expected.float().norm()
        assert 0 < difference < 0.05
