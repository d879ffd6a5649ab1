"""A PiSSA adapter, from the kit that the hub makes to the model that a stock client loads."""

from pathlib import Path

import torch
from peft import PeftModel

from deltahub.client.transfer import pissa_model
from support.adapters.place import adapter_place
from support.adapters.tuning import load_base, logits, train


def test_an_adapter_that_was_trained_from_a_kit_acts_the_same_everywhere(tmp_path: Path) -> None:
    with adapter_place(tmp_path) as place:
        model = pissa_model(place.ann, "ann/base", rank=4)
        assert torch.allclose(logits(model), logits(load_base(place.base)), atol=1e-5)
        train(model)
        model.save_pretrained(tmp_path / "trained", save_embedding_layers=False)
        place.ann.push(tmp_path / "trained", "ann/adapter", base="ann/base")
        place.ann.convert_adapter("ann/adapter").wait()
        assert place.report_of("ann/adapter")["state"] == "plain"
        pulled = place.ann.pull("ann/adapter", to=tmp_path / "pulled")
        found = logits(PeftModel.from_pretrained(load_base(place.base), pulled))
        assert torch.allclose(found, logits(model), atol=1e-4)
