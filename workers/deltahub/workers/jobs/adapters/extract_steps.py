"""The steps of the job `extract_adapter`."""

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from deltahub.methods.adapters.extraction import REPORT_FILE, ExtractionReport, tails
from deltahub.methods.adapters.factors import Factors
from deltahub.methods.adapters.initial.principal import Weight, principal_spectrum, singular_values
from deltahub.methods.adapters.kit import target_names
from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.adapters.names import PREFIX
from deltahub.methods.errors import CannotAdapt
from deltahub.methods.kinds.extract_adapter import ExtractAdapterArguments
from deltahub.methods.kinds.weights.targets import matrices_of, modules_of
from deltahub.registry.db.session import WriteSession
from deltahub.registry.errors import Conflict
from deltahub.registry.results import publish as results
from deltahub.registry.results.asked import Granted, granted, granted_in
from deltahub.registry.results.files import FileMaker
from deltahub.registry.results.inputs import InputModel, load_model
from deltahub.registry.results.publish import Branch, Result
from deltahub.registry.results.tensors import MadePack
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.adapters.declared_base import base_of
from deltahub.workers.jobs.adapters.tensors import (
    FLOATS,
    is_transposed,
    made_ref,
    read_blocks,
    read_matrix,
    rounded,
    store_values,
)

# Iterations of the randomized decomposition of a difference, whose spectrum is flatter than a
# weight's.
_ITERATIONS: Final = 16
# Matrices whose singular values one step finds.
_MEASURED: Final = 16


@dataclass(frozen=True)
class _Models:
    grant: Granted
    arguments: ExtractAdapterArguments
    model: InputModel
    base: InputModel
    modules: list[str]  # that the adapter changes
    left_out: list[str]  # other tensors that the fine-tune changed
    is_transposed: bool

    def difference(self, context: ComputeContext, name: str) -> Weight:
        """What the fine-tune changed of a tensor of the base, in single precision."""
        tuned = read_matrix(context, self.model.tensors[name], self.model.title)
        return tuned - read_matrix(context, self.base.tensors[name], self.base.title)

    def matrix(self, context: ComputeContext, module: str) -> Weight:
        """The same of a module's weight, as outputs x inputs."""
        found = self.difference(context, f"{module}.weight")
        return np.ascontiguousarray(found.T) if self.is_transposed else found


def check(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"most": the largest rank that a matrix has, "extraction": for a dry run}."""
    models = _models(context)
    sides = [min(models.base.tensors[f"{each}.weight"].ref.shape) for each in models.modules]
    told = {
        "model": f"{models.model.name}@{models.model.commit}",
        "base": f"{models.base.name}@{models.base.commit}",
        "n_modules": len(models.modules),
        "left_out": models.left_out,
    }
    return {"most": max(sides), "extraction": told}


def measure(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"next", "tails": what some matrices lose at each rank}."""
    models = _models(context)
    first: int = arguments["first"]
    end = min(first + _MEASURED, len(models.modules))
    found = []
    for at in range(first, end):
        found.append(tails(singular_values(models.matrix(context, models.modules[at]))))
        context.report("measure", at + 1, len(models.modules))
    return {"next": end if end < len(models.modules) else None, "tails": found}


def extract(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: the factors of one pack, from the matrix number `first` on. arguments: first, rank.

    {"next", "made": the tensors, "lost", "changed": sums of squares of all its elements}
    """
    models = _models(context)
    given, position = models.arguments, arguments["first"]
    made: list[dict[str, object]] = []
    lost = changed = 0.0
    domain, limit = models.grant.domain_id, context.registry.settings.pack_bytes
    with MadePack(context.registry, context.reader, domain, context.job_id) as pack:
        while position < len(models.modules) and pack.size_bytes < limit:
            module = models.modules[position]
            matrix = models.matrix(context, module)
            rank = min(arguments["rank"], *matrix.shape)
            found = principal_spectrum(matrix, rank, iterations=_ITERATIONS)
            best = found.truncated(arguments["rank"])
            factors = Factors(
                rounded(best.down, given.dtype, module), rounded(best.up, given.dtype, module)
            )
            for name, values in (("lora_A", factors.down), ("lora_B", factors.up)):
                full = f"{PREFIX}{module}.{name}.weight"
                made.append(store_values(context, pack, values, given.dtype, full))
            product = factors.up.astype(np.float32) @ factors.down.astype(np.float32)
            lost += float(np.linalg.norm(matrix - product)) ** 2
            changed += float(np.linalg.norm(matrix)) ** 2
            position += 1
            context.report("decompose", position, len(models.modules))
        pack.store(0)
    next_one = position if position < len(models.modules) else None
    return {"next": next_one, "made": made, "lost": lost, "changed": changed}


def make_file(context: ComputeContext, arguments: dict[str, Any]) -> int:
    """Step: the row of the adapter's weights. arguments: made."""
    models = _models(context)
    maker = FileMaker(context.registry, context.reader, models.grant.domain_id, context.job_id)
    made = [made_ref(each) for each in arguments["made"]]

    def progress(done: int, total: int) -> None:
        context.report("hash the adapter", done, total)

    return maker.new_file(sorted(made, key=lambda each: str(each.name)), {"format": "pt"}, progress)


def publish(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: makes the repository. arguments: row, rank, sums. {"name", "commit", "extraction"}"""
    models = _models(context)
    given, grant, base = models.arguments, models.grant, models.base
    lost, changed = arguments["sums"]["lost"], arguments["sums"]["changed"]
    others = sum(_changed(context, models, name) for name in models.left_out)
    report = ExtractionReport(
        model=f"{models.model.name}@{models.model.commit}",
        base=f"{base.name}@{base.commit}",
        rank=arguments["rank"],
        dtype=given.dtype,
        n_modules=len(models.modules),
        error=float(np.sqrt(lost / changed)) if changed else 0.0,
        whole_error=float(np.sqrt((lost + others) / (changed + others))) if changed else 0.0,
        left_out=tuple(models.left_out),
    )
    texts = {
        "README.md": report.card(given.name).encode(),
        CONFIG_FILE: _config(models, report.rank),
        REPORT_FILE: (report.model_dump_json(indent=1) + "\n").encode(),
    }
    parents = [models.model.revision_id]
    message = f"Extract rank {report.rank} of {models.model.name}"
    branch = Branch("main", message, {WEIGHTS_FILE: arguments["row"]}, texts, parents)
    result = Result(
        given.name, grant.is_private, "adapter", (report.base, base.revision_id), [branch]
    )

    def still_granted(session: WriteSession) -> None:
        if granted_in(session, context.registry.settings, context.job_id) != grant:
            raise Conflict("what the job may read or make has changed while it ran: retry it")

    commit = results.publish(context.registry, grant.caller, context.job_id, result, still_granted)
    return {"name": given.name, "commit": commit, "extraction": report.model_dump(mode="json")}


def _changed(context: ComputeContext, models: _Models, name: str) -> float:
    """The squared norm of what the fine-tune changed of a tensor that is not adapted; 0 for one
    without floating-point elements.
    """
    own, base = models.model.tensors[name], models.base.tensors.get(name)
    pair = [own] if base is None or base.ref.shape != own.ref.shape else [own, base]
    if any(each.ref.dtype not in FLOATS for each in pair):
        return 0.0
    total = 0.0
    blocks = zip(*(read_blocks(context, each) for each in pair), strict=True)
    for values in blocks:
        change = values[0] - values[1] if len(values) == 2 else values[0]
        total += float((change[np.isfinite(change)] ** 2).sum())
    return total


def _models(context: ComputeContext) -> _Models:
    """Both models, if the job's user may still read them. CannotAdapt if they do not fit."""
    grant = granted(context.registry, context.job_id)
    known = context.memo.get("extraction")
    if isinstance(known, _Models) and known.grant == grant:
        return known
    arguments = ExtractAdapterArguments.model_validate(grant.arguments)
    model = load_model(context.registry, context.reader, grant.revisions[0], context.job_id)
    named = grant.revisions[1] if arguments.base is not None else None
    base = base_of(context, grant.caller, model, named)
    if base.is_private and base.domain_id != grant.domain_id:
        raise CannotAdapt(
            f"{base.title} is private, and what is made of it stays in its namespace: choose a name"
            " there"
        )
    changed = [
        name
        for name, tensor in model.tensors.items()
        if name not in base.tensors or base.tensors[name].ref.tensor != tensor.ref.tensor
    ]
    fitting = {
        name: (base.tensors[name].ref.dtype, base.tensors[name].ref.shape)
        for name in changed
        if name in base.tensors and base.tensors[name].ref.shape == model.tensors[name].ref.shape
    }
    if not fitting:
        raise CannotAdapt(
            f"{model.title} and {base.title} have no tensor of one name and shape that differs:"
            " name the base that it was fine-tuned from by --base"
        )
    modules = modules_of(fitting, arguments.targets, f"{model.title}, as far as it changed,")
    weights = {f"{module}.weight" for module in modules}
    left_out = [name for name in changed if name not in weights]
    found = _Models(grant, arguments, model, base, modules, left_out, is_transposed(context, base))
    context.memo["extraction"] = found
    return found


def _config(models: _Models, rank: int) -> bytes:
    shapes = {name: (each.ref.dtype, each.ref.shape) for name, each in models.base.tensors.items()}
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": models.base.name,
        "revision": models.base.commit,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": target_names(models.modules, matrices_of(shapes)),
        "fan_in_fan_out": models.is_transposed,
        "init_lora_weights": True,
        "use_rslora": False,
        "inference_mode": True,
    }
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
