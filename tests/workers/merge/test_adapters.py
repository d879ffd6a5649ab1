"""Adapters among the models are merged into the base first, as PEFT would do it."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import nn

from deltahub.registry import Caller, Registry
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.workers.failures import StepFailed
from support.jobs.here import run_job
from support.merging.running import PATH, asked, branches, push_family
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested, read_file, stored_tensors

RANK, ALPHA = 4, 16


def adapter(seed: int = 0, **more: torch.Tensor) -> tiny.Tensors:
    """Tensors as PEFT saves them, for the modules `up`, `down` and `embedding`."""
    torch.manual_seed(seed)
    base = tiny.base()
    found: tiny.Tensors = {}
    for module in ("up", "down"):
        rows, columns = base[f"{module}.weight"].shape
        prefix = f"base_model.model.{module}"
        found[f"{prefix}.lora_A.weight"] = torch.randn(RANK, columns) * 0.02
        found[f"{prefix}.lora_B.weight"] = torch.randn(rows, RANK) * 0.02
    rows, columns = base["embedding.weight"].shape
    found["base_model.model.embedding.lora_embedding_A"] = torch.randn(RANK, rows) * 0.02
    found["base_model.model.embedding.lora_embedding_B"] = torch.randn(columns, RANK) * 0.02
    return found | {name: each for name, each in more.items()}


def merged(tensors: tiny.Tensors, scale: float) -> tiny.Tensors:
    """The base plus the adapter, in double precision, rounded once."""
    found = dict(tiny.base())
    prefix = "base_model.model."
    for module in ("up", "down"):
        product = (
            tensors[f"{prefix}{module}.lora_B.weight"].double()
            @ tensors[f"{prefix}{module}.lora_A.weight"].double()
        )
        name = f"{module}.weight"
        found[name] = (found[name].double() + scale * product).float()
    up, down = (tensors[f"{prefix}embedding.lora_embedding_{each}"].double() for each in "BA")
    name = "embedding.weight"
    found[name] = (found[name].double() + scale * (up @ down).T).float()
    return found


def push_adapter(
    reg: Registry, ann: Caller, tensors: tiny.Tensors, name: str = "ann/lora", **config: Any
) -> None:
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA} | config
    files = {
        "adapter_model.safetensors": tiny.to_file(tensors),
        "adapter_config.json": json.dumps(settings).encode(),
    }
    push_ingested(reg, ann, name, files)


@pytest.mark.parametrize("uses_rslora", [False, True])
def test_an_adapter_is_the_full_model_that_it_stands_for(
    reg: Registry, ann: Caller, uses_rslora: bool
) -> None:
    names = push_family(reg, ann, [tiny.task(0)])
    tensors = adapter()
    push_adapter(reg, ann, tensors, use_rslora=uses_rslora)
    scale = ALPHA / (RANK**0.5 if uses_rslora else RANK)
    job = asked(reg, ann, [*names, "ann/lora"], method="lossless")
    report = run_job(reg, job)["report"]
    found = branches(reg, "merged")
    # An exact branch of an adapter is a full model, which takes more than the adapter.
    shared = {each.id for each in stored_tensors(reg, found["main"]).values()}
    own = [each for each in stored_tensors(reg, found["lora"]).values() if each.id not in shared]
    assert report["tasks"][1]["branch_bytes"] == sum(each.stored_bytes for each in own)
    assert report["tasks"][1]["branch_bytes"] > report["tasks"][1]["fine_tune_bytes"]
    made = load(read_file(reg, found["lora"], PATH))
    for name, expected in merged(tensors, scale).items():
        assert torch.allclose(made[name], expected, rtol=1e-6, atol=0), name
    assert read_file(reg, found["task0"], PATH) == tiny.to_file(tiny.task(0))
    assert read_file(reg, found["lora"], "config.json")
    assert list(fsck(reg, read_data=True)) == []


@pytest.mark.parametrize("method", ["emr", "ties", "low-rank"])
def test_adapters_and_full_models_are_merged_together(
    reg: Registry, ann: Caller, method: str
) -> None:
    names = push_family(reg, ann, [tiny.task(0)])
    whole = {"base_model.model.head.weight": tiny.base()["head.weight"] * 2}
    push_adapter(reg, ann, adapter() | whole)
    push_adapter(reg, ann, adapter(1), "ann/other")
    models = [*names, "ann/lora", "ann/other"]
    report = run_job(reg, asked(reg, ann, models, method=method))["report"]
    assert [task["model"].partition("@")[0] for task in report["tasks"]] == models
    found = branches(reg, "merged")
    if method != "ties":
        made = load(read_file(reg, found["lora"], PATH))
        # What the adapter replaces, and the merge leaves alone, is the adapter's.
        assert torch.equal(made["head.weight"], tiny.base()["head.weight"] * 2)
        error = made["up.weight"] - merged(adapter(), ALPHA / RANK)["up.weight"]
        moved = tiny.base()["up.weight"] - merged(adapter(), ALPHA / RANK)["up.weight"]
        assert error.norm() < moved.norm()
    assert list(fsck(reg, read_data=True)) == []


def test_peft_merges_the_same(reg: Registry, ann: Caller, tmp_path: Any) -> None:
    peft = pytest.importorskip("peft")
    model = tiny.TinyModel()
    model.load_state_dict(tiny.base())
    settings = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["up", "down"])
    wrapped = peft.get_peft_model(model, settings)
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.02)
    wrapped.save_pretrained(tmp_path)
    names = push_family(reg, ann, [tiny.task(0)])
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    push_ingested(reg, ann, "ann/lora", files)
    run_job(reg, asked(reg, ann, [*names, "ann/lora"], method="lossless"))
    made = load(read_file(reg, branches(reg, "merged")["lora"], PATH))
    expected = wrapped.merge_and_unload().state_dict()
    for name, tensor in expected.items():
        assert torch.allclose(made[name], tensor, rtol=1e-5, atol=1e-7), name


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "DoRA": ({"use_dora": True}, "DoRA scales the rows"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_16"}, "initialized by pissa_niter_16, which"),
    "an activated LoRA": ({"alora_invocation_tokens": [1]}, "acts only after its invocation"),
    "another type": ({"peft_type": "IA3"}, "an adapter of type IA3; only LoRA"),
    "no alpha": ({"lora_alpha": None}, "no valid lora_alpha"),
}


@pytest.mark.parametrize("kind", list(REFUSED))
def test_an_adapter_that_cannot_be_merged_says_why(reg: Registry, ann: Caller, kind: str) -> None:
    config, message = REFUSED[kind]
    names = push_family(reg, ann, [tiny.task(0)])
    push_adapter(reg, ann, adapter(), **config)
    with pytest.raises(StepFailed, match=message) as failure:
        run_job(reg, asked(reg, ann, [*names, "ann/lora"]))
    assert failure.value.code == "cannot_merge"


ODD_TENSORS = {
    "of another base": ({f"base_model.model.q.lora_{each}.weight": 4 for each in "AB"},
                        "changes q.weight"),
    "without its half": ({"base_model.model.head.lora_A.weight": 4}, "and no base_model"),
    "of no plain LoRA": ({"base_model.model.up.lora_magnitude_vector": 4}, "no part of a plain"),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(ODD_TENSORS))
def test_odd_tensors_of_an_adapter_are_named(reg: Registry, ann: Caller, fault: str) -> None:
    more, message = ODD_TENSORS[fault]
    names = push_family(reg, ann, [tiny.task(0)])
    push_adapter(reg, ann, adapter() | {name: torch.zeros(n, n) for name, n in more.items()})
    with pytest.raises(StepFailed, match=message):
        run_job(reg, asked(reg, ann, [*names, "ann/lora"]))


def test_an_adapter_is_no_base(reg: Registry, ann: Caller) -> None:
    names = push_family(reg, ann, [tiny.task(0), tiny.task(1)])
    push_adapter(reg, ann, adapter())
    with pytest.raises(StepFailed, match="is an adapter: name the model"):
        run_job(reg, asked(reg, ann, names, base="ann/lora"))
