"""Models of any float dtype, in shards, with tied tensors, and of several dtypes are merged."""

import json

import pytest
import torch
from safetensors.torch import load

from deltahub.registry import Caller, Registry
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.workers.failures import StepFailed
from support.jobs.here import run_job
from support.merging.running import CONFIG, PATH, asked, branches
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested, read_file

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def push_cast(
    reg: Registry, ann: Caller, base: torch.dtype, *tasks: torch.dtype, rate: float = 3e-3
) -> list[str]:
    """Push the base and a fine-tune for each dtype, each cast."""
    files = {PATH: tiny.to_file(tiny.cast(tiny.base(), base)), **CONFIG}
    push_ingested(reg, ann, "ann/base", files)
    for number, dtype in enumerate(tasks):
        tensors = tiny.cast(tiny.task(number, rate), dtype)
        files = {PATH: tiny.to_file(tensors), **CONFIG}
        push_ingested(reg, ann, f"ann/task{number}", files, base="ann/base")
    return [f"ann/task{number}" for number in range(len(tasks))]


@pytest.mark.parametrize("method", ["emr", "average", "bitdelta"])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_models_of_one_dtype(reg: Registry, ann: Caller, dtype: str, method: str) -> None:
    names = push_cast(reg, ann, *[DTYPES[dtype]] * 3)
    report = run_job(reg, asked(reg, ann, names, method=method))["report"]
    assert report["merged_tensors"] == len(tiny.base()) - 1  # not the head
    for row in branches(reg, "merged").values():
        tensors = load(read_file(reg, row, PATH))
        assert {tensor.dtype for tensor in tensors.values()} == {DTYPES[dtype]}
    assert max(task["relative_error"] for task in report["tasks"]) < 2
    assert list(fsck(reg, read_data=True)) == []


@pytest.mark.parametrize("base", ["F32", "BF16"])
def test_each_branch_keeps_the_dtype_of_its_fine_tune(
    reg: Registry, ann: Caller, base: str
) -> None:
    tasks = [torch.float32, torch.bfloat16, torch.float16]
    names = push_cast(reg, ann, DTYPES[base], *tasks)
    report = run_job(reg, asked(reg, ann, names))["report"]
    found = branches(reg, "merged")
    main = load(read_file(reg, found["main"], PATH))
    assert {tensor.dtype for tensor in main.values()} == {DTYPES[base]}
    for number, dtype in enumerate(tasks):
        made = load(read_file(reg, found[f"task{number}"], PATH))
        assert {tensor.dtype for tensor in made.values()} == {dtype}
        error = moved = 0.0
        for name, tensor in tiny.task(number, 3e-3).items():
            start = tiny.base()[name].double()
            error += float(((made[name].double() - tensor.double()) ** 2).sum())
            moved += float(((tensor.double() - start) ** 2).sum())
        assert (error / moved) ** 0.5 == pytest.approx(
            report["tasks"][number]["relative_error"], abs=0.05
        )
    assert list(fsck(reg, read_data=True)) == []


def test_a_method_of_one_dtype_says_so(reg: Registry, ann: Caller) -> None:
    names = push_cast(reg, ann, torch.float32, torch.float32, torch.bfloat16)
    with pytest.raises(StepFailed, match="takes models of one dtype; emr takes both"):
        run_job(reg, asked(reg, ann, names, method="bitdelta"))


def test_tensors_whose_scales_differ_stay_with_their_task(reg: Registry, ann: Caller) -> None:
    for number, name in enumerate(("base", "task0", "task1")):
        tensors = tiny.base() if number == 0 else tiny.task(number - 1, 3e-3)
        shown = dict(tensors)
        shown["down.weight"] = tensors["down.weight"].to(torch.float8_e4m3fn)
        shown["down.weight_scale"] = torch.tensor(1.0 + number)
        files = {PATH: tiny.to_file(shown), **CONFIG}
        push_ingested(reg, ann, f"ann/{name}", files, base="ann/base" if number else None)
    report = run_job(reg, asked(reg, ann, ["ann/task0", "ann/task1"]))["report"]
    assert [task["kept_tensors"] for task in report["tasks"]] == [3, 3]  # and the head
    made = load(read_file(reg, branches(reg, "merged")["task1"], PATH))
    own = tiny.task(1, 3e-3)["down.weight"].to(torch.float8_e4m3fn)
    assert torch.equal(made["down.weight"].view(torch.uint8), own.view(torch.uint8))
    assert float(made["down.weight_scale"]) == 3.0


def sharded(tensors: tiny.Tensors) -> dict[str, bytes]:
    """Two shards and their index, with a tied tensor that one shard stores once more."""
    names = sorted(tensors)
    parts = names[: len(names) // 2], names[len(names) // 2 :]
    files, where = {}, {}
    for number, part in enumerate(parts, 1):
        path = f"model-{number:05}-of-00002.safetensors"
        files[path] = tiny.to_file({name: tensors[name] for name in part})
        where |= dict.fromkeys(part, path)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    return {**files, "model.safetensors.index.json": json.dumps(index).encode(), **CONFIG}


def test_shards_and_tied_tensors(reg: Registry, ann: Caller) -> None:
    def tied(tensors: tiny.Tensors) -> tiny.Tensors:
        return tensors | {"tied.weight": tensors["embedding.weight"]}

    push_ingested(reg, ann, "ann/base", sharded(tied(tiny.base())))
    for number in range(2):
        files = sharded(tied(tiny.task(number)))
        push_ingested(reg, ann, f"ann/task{number}", files, base="ann/base")
    run_job(reg, asked(reg, ann, ["ann/task0", "ann/task1"]))
    found = branches(reg, "merged")
    for row in found.values():
        tensors: tiny.Tensors = {}
        for number in (1, 2):
            tensors |= load(read_file(reg, row, f"model-{number:05}-of-00002.safetensors"))
        assert tensors.keys() == tied(tiny.base()).keys()
        assert torch.equal(tensors["tied.weight"], tensors["embedding.weight"])
        assert b"weight_map" in read_file(reg, row, "model.safetensors.index.json")
    assert list(fsck(reg, read_data=True)) == []
