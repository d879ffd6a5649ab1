"""Rounded weights stay within the bounds that the report tells, and its numbers are true."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from deltahub.client import InvalidRequest, JobFailed
from deltahub.methods.inference.model import compress_
from deltahub.methods.inference.modules import CompressedModule
from support.exporting.place import Place, as_numbers, assert_lossless, decoded, plain_bytes

SMALLEST = {"BF16": 2.0**-126, "F16": 2.0**-14, "F32": 2.0**-126}


def check_report(
    place: Place, name: str, tensors: Mapping[str, torch.Tensor], report: Mapping[str, Any]
) -> float:
    """Compare what the report says with the file, by NumPy; the squared error of all weights."""
    export = place.pulled(name)
    lost = 0.0
    assert {each["name"] for each in report["weights"]} == {*export.weights}
    assert {*report["plain"]} == {*export.plain}
    for each in report["weights"]:
        tensor = tensors[each["name"]]
        before = as_numbers(plain_bytes(tensor), each["dtype"])
        after = as_numbers(decoded(export, each["name"]), each["dtype"])
        change = np.abs(after - before)
        is_bound = np.abs(before) >= SMALLEST[each["dtype"]] * (2 if each["block"] else 1)
        relative = change[is_bound] / np.abs(before[is_bound])
        assert relative.max(initial=0) <= each["bound"], each["name"]
        assert relative.max(initial=0) == pytest.approx(each["largest"], rel=1e-9, abs=0)
        error = np.linalg.norm(change) / np.linalg.norm(before)
        assert error == pytest.approx(each["error"], rel=1e-9, abs=0)
        assert each["plain_bytes"] == len(plain_bytes(tensor))
        assert each["coded_bytes"] == export.weights[each["name"]].size_bytes()
        assert each["bits"] == export.weights[each["name"]].coding.bits
        lost += float(error**2) * tensor.numel()
    plain = sum(len(plain_bytes(tensors[each])) for each in report["plain"])
    assert report["export_bytes"] == plain + sum(e["coded_bytes"] for e in report["weights"])
    assert report["plain_bytes"] == plain + sum(e["plain_bytes"] for e in report["weights"])
    return lost


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize(("bits", "block"), [(3, 0), (1, 0), (3, 512), (0, 64)])
def test_no_weight_changes_by_more_than_the_bound(
    place: Place, dtype: str, bits: int, block: int
) -> None:
    kind = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[dtype]
    tensors = place.model(dtype, dtype=kind)
    name = f"{dtype}-{bits}-{block}"
    _, report = place.export(dtype, name, bits=bits, block=block)
    assert check_report(place, name, tensors, report) > 0
    rounded = {each["name"] for each in report["weights"] if each["error"] > 0}
    assert "model.layers.0.self_attn.q_proj.weight" in rounded
    assert not {"model.embed_tokens.weight", "lm_head.weight"} & rounded


def test_one_file_is_read_at_fewer_bits(place: Place) -> None:
    tensors = place.model("bf16")
    export, report = place.export("bf16", "several", bits=5, also=[1, 3])
    check_report(place, "several", tensors, report)
    name = "model.layers.1.mlp.up_proj.weight"
    before = as_numbers(plain_bytes(tensors[name]), "BF16")
    errors, sizes = [], []
    for bits in (1, 3, 5):
        after = as_numbers(decoded(export, name, bits), "BF16")
        errors.append(np.linalg.norm(after - before))
        sizes.append(export.weights[name].size_bytes(bits))
    assert errors == sorted(errors, reverse=True)
    assert sizes == sorted(sizes)
    # Bits that are left out become the middle, so that the error is about that of rounding.
    once, _ = place.export("bf16", "once", bits=3)
    rounded = as_numbers(decoded(once, name), "BF16")
    assert errors[1] < 1.1 * np.linalg.norm(rounded - before)


def test_a_lossless_file_is_read_at_fewer_bits(place: Place) -> None:
    tensors = place.model("bf16")
    export, _ = place.export("bf16", "exact-also", also=3)
    assert_lossless(export, tensors)
    assert export.weights["model.layers.0.mlp.up_proj.weight"].coding.levels == (3, 7)


def test_a_budget_is_kept_and_loses_less_than_fewer_bits_for_all(place: Place) -> None:
    tensors = place.model("bf16")
    _, three = place.export("bf16", "three", bits=3)
    rounded = {each["name"]: each for each in three["weights"] if each["error"] > 0}

    def bits_an_element(report: Mapping[str, Any]) -> float:
        chosen = [each for each in report["weights"] if each["name"] in rounded]
        count = sum(tensors[each["name"]].numel() for each in chosen)
        return float(8 * sum(each["coded_bytes"] for each in chosen) / count)

    budget = bits_an_element(three) * 1.03
    _, report = place.export("bf16", "budget", bits="auto", budget=budget)
    assert bits_an_element(report) <= budget
    lost = check_report(place, "budget", tensors, report)
    assert lost < check_report(place, "three", tensors, three)
    chosen = {each["name"]: each["bits"] for each in report["weights"] if each["name"] in rounded}
    assert len({*chosen.values()}) > 1
    # A model in memory is compressed alike.
    plain = AutoModelForCausalLM.from_pretrained(place.folder("bf16"), dtype="auto")
    model = compress_(plain, bits="auto", budget=budget)
    sources = [each.source for each in model.modules() if isinstance(each, CompressedModule)]
    in_memory = {each.name: each.weight.coding.bits for each in sources}
    assert {name: in_memory[name] for name in chosen} == chosen


def test_keep_says_which_weights_stay_lossless(place: Place) -> None:
    place.model("bf16")
    _, report = place.export("bf16", "kept", bits=1, keep="*.down_proj.weight")
    exact = {each["name"] for each in report["weights"] if each["error"] == 0}
    assert exact == {f"model.layers.{i}.mlp.down_proj.weight" for i in range(2)}
    _, report = place.export("bf16", "none-kept", bits=1, keep=["none"])
    assert not [each for each in report["weights"] if each["error"] == 0]


def test_infinite_and_missing_numbers_are_kept_and_said(place: Place) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randn(64, 128, generator=generator).to(torch.bfloat16)
        for name in ("infinite", "missing", "finite")
    }
    tensors["infinite"][3, 4] = float("-inf")
    tensors["missing"][:, 7] = float("nan")
    place.push("special", tensors)
    for bits, budget in (("3", None), ("auto", 5.0)):
        export, report = place.export("special", f"special-{bits}", bits=bits, budget=budget)
        for name in ("infinite", "missing"):
            assert decoded(export, name) == plain_bytes(tensors[name])
        kept = {each["name"] for each in report["weights"] if each["error"] == 0}
        assert kept == {"infinite", "missing"}
        card = (place.ann.pull(f"ann/special-{bits}") / "README.md").read_text()
        assert "2 weights have infinite or NaN elements" in card


def test_extreme_numbers_stay_finite_and_within_the_bound(place: Place) -> None:
    tensors = {}
    for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32)):
        limits = torch.finfo(dtype)
        generator = torch.Generator().manual_seed(2)
        each = torch.randn(64, 64, generator=generator).to(dtype)
        each[0] = limits.max
        each[1] = -limits.max
        each[2] = limits.smallest_normal
        each[3] = limits.smallest_normal / 4
        each[4] = 0.0
        each[5] = -0.0
        tensors[name] = each
    place.push("extreme", tensors)
    for bits, block in ((3, 0), (0, 0), (3, 64)):
        name = f"extreme-{bits}-{block}"
        export, report = place.export("extreme", name, bits=bits, block=block)
        check_report(place, name, tensors, report)
        for each in report["weights"]:
            after = as_numbers(decoded(export, each["name"]), each["dtype"])
            assert np.isfinite(after).all()


def test_a_budget_that_no_weights_meet_is_refused_at_once_or_by_a_sample(place: Place) -> None:
    place.model("bf16")
    with pytest.raises(InvalidRequest, match=r"0\.5 bits an element is too small: no weights take"):
        place.export("bf16", "nothing", bits="auto", budget=0.5)
    for is_dry in (True, False):
        running = place.ann.export_neuzip(
            "ann/bf16", "ann/nothing", bits="auto", budget=2, dry_run=is_dry
        )
        with pytest.raises(JobFailed, match=r"2 bits an element is too small: .* take [34]\."):
            running.wait()
        error = running.refresh().error
        assert error is not None
        assert error.code == "cannot_export"
    with pytest.raises(InvalidRequest, match="has no weight that may be rounded"):
        place.export("bf16", "nothing", bits="auto", budget=5, keep=["*"])


def test_a_dry_run_of_any_budget_says_what_the_export_then_takes(place: Place) -> None:
    place.model("bf16")

    def estimated(budget: float) -> dict[str, Any]:
        running = place.ann.export_neuzip(
            "ann/bf16", "ann/never", bits="auto", budget=budget, dry_run=True
        )
        result = running.wait().result
        assert result is not None
        found: dict[str, Any] = result["estimate"]
        return found

    small, large, whole = (estimated(budget) for budget in (5, 40, 64))
    assert small["export_bytes"] < large["export_bytes"] == whole["export_bytes"]
    assert large["export_bytes"] < large["plain_bytes"]
    least, most = large["budget_range"]
    assert 3 < least < 5 < most < 16
    _, report = place.export("bf16", "budget-40", bits="auto", budget=40)
    assert report["export_bytes"] == pytest.approx(large["export_bytes"], rel=0.02)
    assert large["seconds"] > 0
