"""The steps of the job `convert_adapter`."""

from typing import Any, Final

import numpy as np

from deltahub.methods.adapters.conversion import (
    REPORT_FILE,
    ConversionReport,
    fitted,
    needed_rank,
    plain_config,
    update_of,
)
from deltahub.methods.adapters.factors import Factors
from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE, Change
from deltahub.methods.errors import CannotAdapt
from deltahub.registry.catalog.weights import digest_of
from deltahub.registry.db.models import File
from deltahub.registry.results.commit import Addition, add_commit
from deltahub.registry.results.files import FileMaker
from deltahub.registry.results.inputs import InputModel
from deltahub.registry.results.tensors import MadePack
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.adapters.convert_initial import read_factors
from deltahub.workers.jobs.adapters.convert_inputs import (
    Conversion,
    conversion,
    embedding_rank,
    ranks,
    raw_config,
)
from deltahub.workers.jobs.adapters.declared_base import require_readable
from deltahub.workers.jobs.adapters.tensors import made_ref, rounded, store_values

# Of trainings it is above 0.9; between an adapter and factors of another base about 0.
_MIN_COSINE: Final = 0.3


def check(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"rank": of an exact result, "least": the smallest that there can be, because adapters
    of embeddings stay as they are, "conversion": what a dry run tells}.
    """
    found = conversion(context)
    rank = max(2 * max(ranks(found)), embedding_rank(found))
    if found.arguments.rank is not None and found.arguments.rank > rank:
        raise CannotAdapt(
            f"rank {found.arguments.rank}: the updates of {found.adapter.title} have rank {rank} at"
            " most, so choose no more"
        )
    context.log(f"{found.adapter.title} on {found.base.title}: {found.source}")
    told = {
        "adapter": f"{found.adapter.name}@{found.adapter.commit}",
        "base": f"{found.base.name}@{found.base.commit}",
        "init": found.config.start,
        "source": found.source,
        "n_modules": len(found.linear),
        "kept": found.kept,
    }
    return {"rank": rank, "least": embedding_rank(found), "conversion": told}


def measure(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"next", "rank": the smallest that keeps the updates of a part within `error`}."""
    found = conversion(context)
    position: int = arguments["first"]
    end = min(position + 32, len(found.linear))
    rank = 1
    for at in range(position, end):
        update, _ = _update(context, found, found.linear[at])
        rank = max(rank, needed_rank(update, arguments["error"]))
        context.report("measure", at + 1, len(found.linear))
    return {"next": end if end < len(found.linear) else None, "rank": rank}


def convert(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: the tensors of one pack, from number `first` on. arguments: first, rank.

    {"next", "made": the tensors, "error": the largest relative error, "cosines": between B A and
    B0 A0 of each module}
    """
    found = conversion(context)
    names = list(found.changes)
    dtype, rank = found.arguments.dtype, arguments["rank"]
    position: int = arguments["first"]
    limit = context.registry.settings.pack_bytes
    made: list[dict[str, object]] = []
    worst, cosines = 0.0, list[float]()
    with MadePack(
        context.registry, context.reader, found.adapter.domain_id, context.job_id
    ) as pack:
        while position < len(names) and pack.size_bytes < limit:
            change = found.changes[names[position]]
            if change.whole is not None:
                made.append(_as_pushed(found, change.whole))
            elif change.is_embedding:
                own = read_factors(context, found.adapter, change)
                factors = own.scaled(found.scales[names[position]])
                made += _stored(context, pack, change, factors.padded(rank), dtype)
            else:
                update, cosine = _update(context, found, names[position])
                cosines.append(cosine)
                factors, error = fitted(update, rank, is_rounded=dtype != "F32")
                made += _stored(context, pack, change, factors, dtype)
                if dtype != "F32":
                    error = _error_of(update, factors, dtype, change.module)
                worst = max(worst, error)
            position += 1
            context.report("convert", position, len(names))
        pack.store(0)
    next_one = position if position < len(names) else None
    return {"next": next_one, "made": made, "error": worst, "cosines": cosines}


def make_file(context: ComputeContext, arguments: dict[str, Any]) -> int:
    """Step: the row of the result's weights. arguments: made, cosines.

    CannotAdapt if the adapter did not start from these factors.
    """
    found = conversion(context)
    middle = float(np.median(arguments["cosines"]))
    if middle < _MIN_COSINE:
        raise CannotAdapt(
            f"the weights of {found.adapter.title} have little to do with the initial factors"
            f" ({found.source}): the cosine between both is {middle:.2f} in the middle of its"
            " modules. Name the base that it was trained on by --base, or what it started from by"
            " --init"
        )
    maker = FileMaker(context.registry, context.reader, found.adapter.domain_id, context.job_id)
    tensors = sorted(
        (made_ref(each) for each in arguments["made"]), key=lambda each: str(each.name)
    )
    return maker.new_file(
        tensors,
        {"format": "pt"},
        lambda done, total: context.report("hash the adapter", done, total),
    )


def publish(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: commits the result. arguments: row, rank, error. {"name", "commit", "conversion"}"""
    found = conversion(context)
    adapter, base = found.adapter, found.base
    require_readable(context, found.grant.caller, base.revision_id)
    report = ConversionReport(
        adapter=f"{adapter.name}@{adapter.commit}",
        adapter_sha256=_sha256_of(context, adapter, WEIGHTS_FILE),
        base=f"{base.name}@{base.commit}",
        base_digest=digest_of({name: each.ref for name, each in base.tensors.items()}),
        init=found.config.start,
        source=found.source,
        rank=arguments["rank"],
        trained_rank=max(ranks(found)),
        dtype=found.arguments.dtype,
        n_modules=len(found.linear),
        error=arguments["error"],
        kept=tuple(found.kept),
    )
    modules = {found.changes[name].module for name in found.linear}
    texts = {
        CONFIG_FILE: plain_config(
            raw_config(found), report.rank, (base.name, base.commit), modules
        ),
        REPORT_FILE: (report.model_dump_json(indent=1) + "\n").encode(),
    }
    commit = add_commit(
        context.registry,
        found.grant.caller,
        Addition(
            name=adapter.name,
            branch="main",
            parent=adapter.commit,
            tag=f"pushed-{adapter.commit[:12]}",
            message=f"Convert {found.config.start} of {base.name} to a plain LoRA",
            files={WEIGHTS_FILE: arguments["row"]},
            texts=texts,
            base=f"{base.name}@{base.commit}",
            # They belong to what was pushed, whose tag keeps them, and to no later adapter.
            removed=[
                file.path
                for file in adapter.files
                if file.path.partition("/")[0].endswith("_init") and "/" in file.path
            ],
        ),
    )
    return {"name": adapter.name, "commit": commit, "conversion": report.model_dump(mode="json")}


def _update(context: ComputeContext, found: Conversion, name: str) -> tuple[Factors, float]:
    """(the factors of a module's update, the cosine between B A and B0 A0)"""
    trained = found.trained(context, name)
    initial = found.initial(name, found.changes[name])
    return update_of(trained, initial, found.scales[name]), trained.cosine(initial)


def _stored(
    context: ComputeContext,
    pack: MadePack,
    change: Change,
    factors: Factors,
    dtype: str,
) -> list[dict[str, object]]:
    """A and B as tensors of the pack, with the names that they have in the adapter."""
    both = ((change.down, factors.down), (change.up, factors.up))
    return [store_values(context, pack, values, dtype, str(name)) for name, values in both]


def _as_pushed(found: Conversion, name: str) -> dict[str, object]:
    ref = found.adapter.tensors[name].ref
    return {
        "name": name, "dtype": ref.dtype, "shape": list(ref.shape), "content": ref.tensor.hex(),
    }  # fmt: skip


def _error_of(update: Factors, factors: Factors, dtype: str, module: str) -> float:
    """The relative error of an update with its factors as they are stored, Frobenius norm."""
    stored = Factors(rounded(factors.down, dtype, module), rounded(factors.up, dtype, module))
    lost = Factors(
        np.concatenate([update.down, stored.down]),
        np.concatenate([update.up, -stored.up], axis=1),
    )
    return lost.norm / max(update.norm, np.finfo(np.float64).tiny)


def _sha256_of(context: ComputeContext, model: InputModel, path: str) -> str:
    (row,) = [file.row for file in model.files if file.path == path]
    with context.registry.db.read() as session:
        return session.get_one(File, row).sha256
