"""Init kits: made by the hub, loaded by the SDK, trained, and pushed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from deltahub.client import Hub, InvalidArgument, InvalidRequest, RepositoryNotFound
from deltahub.client.cli.asking.command import result_lines
from deltahub.client.transfer import pissa_model
from support.adapters.place import Place
from support.adapters.tuning import load_base, logits, train, trained_adapter
from support.web.page_reader import Browser

RANK = 4


@pytest.fixture(scope="module")
def kit(place: Place) -> dict[str, Any]:
    job = place.ann.pissa_init("ann/base", rank=RANK, alpha=2 * RANK).wait()
    assert job.result is not None
    return job.result


def test_a_kit_holds_the_principal_part_of_each_matrix(place: Place, kit: dict[str, Any]) -> None:
    assert kit["name"] == "ann/base-pissa-r4"
    folder = place.ann.pull(kit["name"])
    factors = load_file(folder / "pissa_init" / "adapter_model.safetensors")
    base = load_file(place.base / "model.safetensors")
    modules = [each["module"] for each in kit["kit"]["modules"]]
    assert len(modules) == 14  # seven of each layer, as in the paper
    for told in kit["kit"]["modules"]:
        weight = base[f"{told['module']}.weight"].double().numpy()
        left, values, right = np.linalg.svd(weight, full_matrices=False)
        best = (left[:, :RANK] * values[:RANK]) @ right[:RANK]
        prefix = f"base_model.model.{told['module']}"
        down, up = (factors[f"{prefix}.lora_{each}.weight"].double().numpy() for each in "AB")
        assert np.abs(2 * up @ down - best).max() < 1e-5 * values[0]
        # A A^T = B^T B = diag(S / s)
        assert np.allclose(down @ down.T, np.diag(values[:RANK] / 2), atol=1e-5)
        assert np.allclose(up.T @ up, np.diag(values[:RANK] / 2), atol=1e-5)
        energy = (values[:RANK] ** 2).sum() / (values**2).sum()
        assert told["energy"] == pytest.approx(energy, rel=1e-4)


def test_a_kit_is_no_adapter_in_lists(place: Place, kit: dict[str, Any], tmp_path: Path) -> None:
    trained_adapter(place.base, tmp_path / "a")
    config = tmp_path / "a" / "adapter_config.json"
    told = {**json.loads(config.read_text()), "base_model_name_or_path": "ann/base"}
    config.write_text(json.dumps(told))
    (tmp_path / "a" / "README.md").unlink()  # names the folder of the base
    place.ann.push(tmp_path / "a", "ann/trained", base="ann/base")
    place.report_of("ann/trained")

    def names(**options: Any) -> set[str]:
        return {each.name for each in place.ann.search(base="ann/base", **options)}

    assert kit["name"] in names(role="kit")
    assert kit["name"] in names(tags=("init-kit",))
    assert names(role="adapter") == {"ann/trained"}
    shown = {each.name: each.role for each in place.ann.search(base="ann/base")}
    assert (shown[kit["name"]], shown["ann/trained"]) == ("kit", "adapter")
    page = Browser(place.hub, place.token).get("/-/jobs/choices/merge?base=ann/base")
    assert "ann/trained" in page.text
    assert kit["name"] not in page.text


def test_the_same_kit_is_found_again(place: Place, kit: dict[str, Any]) -> None:
    again = place.ann.pissa_init("ann/base", rank=RANK, alpha=2 * RANK).wait().result
    assert kit["is_found"] is False
    assert again == {**kit, "is_found": True}
    assert "found ann/base-pissa" in "\n".join(result_lines(again))
    assert "made ann/base-pissa" in "\n".join(result_lines(kit))
    other = place.ann.pissa_init("ann/base", rank=RANK, alpha=RANK).wait().result
    assert other is not None
    assert other["name"].startswith("ann/base-pissa-r4-")


def test_a_model_starts_as_its_base_trains_and_names_its_kit(
    place: Place, kit: dict[str, Any], tmp_path: Path
) -> None:
    model = pissa_model(place.ann, "ann/base", rank=RANK, alpha=2 * RANK)
    before = logits(load_base(place.base))
    assert torch.allclose(logits(model), before, atol=1e-5)
    begun = train(model, steps=1)
    assert train(model, steps=40) < begun / 2
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["deltahub_kit"] == f"{kit['name']}@{kit['commit']}"
    assert config["init_lora_weights"] == "pissa"
    assert config["base_model_name_or_path"] == "ann/base"


def test_half_precision_starts_nearer_than_with_peft(place: Place) -> None:
    from peft import LoraConfig, get_peft_model

    def error(model: Any) -> float:
        """Of the weights that act, over those of the base in BF16."""
        total = lost = 0.0
        base = dict(load_base(place.base).to(torch.bfloat16).named_parameters())
        for name, module in model.named_modules():
            if hasattr(module, "lora_A"):
                down, up = (each["default"].weight.detach().double()
                            for each in (module.lora_A, module.lora_B))  # fmt: skip
                update = module.scaling["default"] * (up @ down)
                weight = base[f"{name.removeprefix('base_model.model.')}.weight"].detach().double()
                acts = module.get_base_layer().weight.detach().double() + update
                lost += float((acts - weight).square().sum())
                total += float(weight.square().sum())
        return (lost / total) ** 0.5

    half = load_base(place.base).to(torch.bfloat16)
    ours = pissa_model(place.ann, "ann/base", model=half, rank=RANK, dtype="BF16")
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"]
    settings = LoraConfig(
        r=RANK, lora_alpha=RANK, init_lora_weights="pissa", target_modules=targets
    )
    theirs = get_peft_model(
        load_base(place.base).to(torch.bfloat16), settings, autocast_adapter_dtype=False
    ).to(torch.bfloat16)
    # All that is lost is half a unit in the last place of the residual.
    assert error(ours) * 1.5 < error(theirs)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": 33}, "rank 33 does not fit to"),
        ({"targets": ["z_proj"]}, "has no z_proj to adapt: targets may be"),
    ],
)
def test_a_kit_that_cannot_be_is_refused(place: Place, options: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        place.ann.pissa_init("ann/base", **options)


def test_rank_zero_is_refused_before_a_job_begins(place: Place) -> None:
    with pytest.raises(InvalidArgument, match="rank"):
        place.ann.pissa_init("ann/base", rank=0)


def test_a_quantized_kit_loses_less_than_the_quantization_alone(place: Place) -> None:
    once = place.ann.pissa_init("ann/base", rank=RANK, quant="nf4", iters=1).wait().result
    often = place.ann.pissa_init("ann/base", rank=RANK, quant="nf4", iters=5).wait().result
    assert once is not None
    assert often is not None

    def lost(result: dict[str, Any], key: str) -> float:
        return sum(float(each[key]) for each in result["kit"]["modules"])

    plain = lost(once, "plain_error")
    assert lost(often, "fitted_error") < lost(once, "fitted_error") < plain


def test_a_quantized_kit_loads_what_its_errors_were_measured_on(place: Place) -> None:
    result = place.ann.pissa_init("ann/base", rank=RANK, quant="nf4").wait().result
    assert result is not None
    model = pissa_model(place.ann, "ann/base", kit=result["name"])
    base = load_file(place.base / "model.safetensors")
    for told in result["kit"]["modules"]:
        layer = model.get_submodule(f"base_model.model.{told['module']}")
        update = layer.get_delta_weight("default").detach()
        acts = layer.get_base_layer().weight.detach() + update
        lost = torch.linalg.matrix_norm(base[f"{told['module']}.weight"] - acts, ord="nuc")
        assert float(lost) == pytest.approx(told["fitted_error"], rel=1e-3)


def test_a_kit_of_a_private_base_is_private_and_stays_in_its_namespace(place: Place) -> None:
    place.ann.push(place.base, "ann/hidden", private=True)
    kit = place.ann.pissa_init("ann/hidden", rank=RANK).wait().result
    assert kit is not None
    assert place.ann.repository(kit["name"]).private
    with Hub(place.hub.url, place.hub.user("eve")) as eve:
        with pytest.raises(RepositoryNotFound):
            eve.repository(kit["name"])
        with pytest.raises(RepositoryNotFound):
            eve.pissa_init("ann/hidden", rank=RANK)
        # The same weights in public: she makes a kit of her own, in her namespace.
        own = eve.pissa_init("ann/base", rank=3).wait().result
        assert own is not None
        assert own["name"].startswith("eve/base-pissa-r3")
    with pytest.raises(InvalidRequest, match="is private"):
        place.ann.pissa_init("ann/hidden", rank=RANK, private=False)
