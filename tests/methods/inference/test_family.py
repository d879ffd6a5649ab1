"""A base and its fine-tunes in memory together."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from deltahub.methods.errors import CannotExport
from deltahub.methods.inference.family import Family
from deltahub.methods.inference.model import resident_bytes
from support.models.exported import batch, train, trained_llama, write_export


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, LlamaForCausalLM]]:
    """The base and three fine-tunes, the last of which is the base itself."""
    found = {}
    for name, start in (("base", None), ("first", 2000), ("second", 9000), ("same", None)):
        model = trained_llama()
        if start is not None:
            train(model, steps=4, rate=1e-5, start=start)
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        found[name] = folder, model
    return found


def test_each_model_computes_as_it_does_alone(
    models: dict[str, tuple[Path, LlamaForCausalLM]],
) -> None:
    family = Family(models["base"][0], {name: models[name][0] for name in list(models)[1:]})
    assert family.names == ("base", "first", "second", "same")
    ids = batch(40)
    for name in ("base", "first", "second", "same", "first", "base"):
        model = family.use(name)
        assert family.used == name
        expected = models[name][1](ids).logits
        for _ in range(2):
            assert torch.equal(model(ids).logits, expected)
        few = model(ids[:1, :3]).logits  # rows of the embedding are decoded one by one
        assert torch.equal(few, models[name][1](ids[:1, :3]).logits)
    assert not torch.equal(models["first"][1](ids).logits, models["second"][1](ids).logits)
    plain = resident_bytes(models["base"][1])
    assert resident_bytes(family.model) < resident_bytes(family) < 1.8 * plain  # of four models


def test_a_fine_tune_with_other_tensors_is_refused(
    models: dict[str, tuple[Path, LlamaForCausalLM]], tmp_path: Path
) -> None:
    models["base"][1].float().save_pretrained(tmp_path)
    with pytest.raises(CannotExport, match=r"odd has another .* than the base"):
        Family(models["base"][0], {"odd": tmp_path})
    with pytest.raises(CannotExport, match="has no safetensors files"):
        Family(models["base"][0], {"odd": tmp_path.parent})
    with pytest.raises(CannotExport, match="the base's own name"):
        Family(models["base"][0], {"base": models["first"][0]})
    write_export(trained_llama(), tmp_path / "export")
    with pytest.raises(CannotExport, match=r"odd is an export .*it was made from"):
        Family(models["base"][0], {"odd": tmp_path / "export"})
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(CannotExport, match=r"base is an adapter .*lab/adapter@merged"):
        Family(tmp_path / "adapter", {})
    family = Family(models["base"][0], {})
    with pytest.raises(CannotExport, match="there is no first in memory: base"):
        family.use("first")
