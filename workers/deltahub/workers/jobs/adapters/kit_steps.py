"""The steps of the job `pissa_init`."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from deltahub.methods.adapters.factors import Factors
from deltahub.methods.adapters.initial.principal import initial_factors, principal_spectrum
from deltahub.methods.adapters.initial.qpissa import (
    QuantizedStart,
    quantization_errors,
    quantized_start,
    residual_of,
)
from deltahub.methods.adapters.kit import (
    KIT_CONFIG,
    KIT_FILE,
    KIT_WEIGHTS,
    Kit,
    KitEstimate,
    KitModule,
    default_names,
    key_of,
    kit_config,
)
from deltahub.methods.adapters.lora import CONFIG_FILE
from deltahub.methods.adapters.names import PREFIX
from deltahub.methods.errors import CannotAdapt
from deltahub.methods.kinds.bases.pissa_init import PissaInitArguments
from deltahub.methods.kinds.weights.targets import modules_of
from deltahub.registry.access.caller import Caller
from deltahub.registry.cards.facts import read_small
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.catalog.repositories import free_namespace
from deltahub.registry.db.models import Revision
from deltahub.registry.db.session import WriteSession
from deltahub.registry.errors import Conflict, Forbidden, RegistryError, RepositoryExists
from deltahub.registry.results import publish as results
from deltahub.registry.results.asked import Granted, granted, granted_in, readable_revision
from deltahub.registry.results.files import FileMaker
from deltahub.registry.results.inputs import InputModel, load_model
from deltahub.registry.results.publish import Branch, Result
from deltahub.registry.results.tensors import MadePack
from deltahub.registry.uploads.limits import require_room
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.adapters.tensors import (
    is_transposed,
    made_ref,
    read_matrix,
    rounded,
    store_values,
)

# What the process takes besides the weights, and copies of a weight while it is decomposed.
_PROCESS_BYTES: Final = 300 << 20
_COPIES: Final = 3
_MAX_KIT_FILE: Final = 16 << 20


@dataclass(frozen=True)
class _Inputs:
    """What all steps read: the base, the modules, and how they are decomposed."""

    grant: Granted
    arguments: PissaInitArguments
    base: InputModel
    modules: list[str]
    is_transposed: bool

    @property
    def shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {name: (t.ref.dtype, t.ref.shape) for name, t in self.base.tensors.items()}

    def shape(self, module: str) -> tuple[int, int]:
        """outputs, inputs"""
        rows, columns = self.base.tensors[f"{module}.weight"].ref.shape
        return (columns, rows) if self.is_transposed else (rows, columns)


def check(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"key", "name": of the new repository, "known": the result of an earlier job
    or None, "estimate": KitEstimate}.
    """
    inputs = _inputs(context)
    given, base = inputs.arguments, inputs.base
    given.check_rank(inputs.shapes, inputs.modules, base.title)
    weights = {each: base.tensors[f"{each}.weight"].ref.tensor for each in inputs.modules}
    key = key_of(given, weights, transposed=inputs.is_transposed)
    name, known = _place(context, inputs, key)
    n_values = sum(given.rank * sum(inputs.shape(module)) for module in inputs.modules)
    sizes = [base.tensors[f"{each}.weight"].ref.size for each in inputs.modules]
    largest = max(np.prod(inputs.shape(each), dtype=np.int64) for each in inputs.modules)
    longest = max(min(inputs.shape(each)) for each in inputs.modules)
    gram = 5 * 8 * longest**2 if given.exact or given.quant else 0
    estimate = KitEstimate(
        n_modules=len(inputs.modules),
        kit_bytes=n_values * (4 if given.dtype == "F32" else 2),
        read_bytes=sum(sizes),
        memory_bytes=_PROCESS_BYTES + int(largest) * 4 * _COPIES + gram,
        known=None if known is None else known["name"],
    )
    if known is None:
        require_room(context.registry, estimate.kit_bytes, "the kit needs")
    return {
        "key": key,
        "name": name,
        "known": known,
        "estimate": estimate.model_dump(mode="json"),
    }


def decompose(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: the factors of one pack, from the module number `first` on.

    {"next": number of the next module, or None, "made": the tensors, "modules": KitModule of each}
    """
    inputs = _inputs(context)
    position: int = arguments["first"]
    made: list[dict[str, object]] = []
    modules: list[dict[str, Any]] = []
    domain, limit = inputs.grant.domain_id, context.registry.settings.pack_bytes
    with MadePack(context.registry, context.reader, domain, context.job_id) as pack:
        while position < len(inputs.modules) and pack.size_bytes < limit:
            module = inputs.modules[position]
            factors, told = _decomposed(context, inputs, module)
            for name, values in (("lora_A", factors.down), ("lora_B", factors.up)):
                full = f"{PREFIX}{module}.{name}.weight"
                made.append(store_values(context, pack, values, inputs.arguments.dtype, full))
            modules.append(told.model_dump(mode="json"))
            position += 1
            context.report("decompose", position, len(inputs.modules))
        pack.store(0)
    return {
        "next": position if position < len(inputs.modules) else None,
        "made": made,
        "modules": modules,
    }


def make_file(context: ComputeContext, arguments: dict[str, Any]) -> int:
    """Step: the row of the kit's file of factors. arguments: made."""
    inputs = _inputs(context)
    domain = inputs.grant.domain_id
    maker = FileMaker(context.registry, context.reader, domain, context.job_id)
    tensors = [made_ref(each) for each in arguments["made"]]

    def progress(done: int, total: int) -> None:
        context.report("hash the factors", done, total)

    return maker.new_file(tensors, {"format": "pt"}, progress)


def publish(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: makes the repository. arguments: row, modules, key, name. {"name", "commit", "kit"}"""
    inputs = _inputs(context)
    given, grant = inputs.arguments, inputs.grant
    name: str = arguments["name"]
    kit = Kit(
        key=arguments["key"],
        base=inputs.base.name,
        base_commit=inputs.base.commit,
        rank=given.rank,
        alpha=given.scale * given.rank,
        dtype=given.dtype,
        targets=given.targets or (),
        fan_in_fan_out=inputs.is_transposed,
        niter=None if given.exact else given.niter,
        seed=given.seed,
        quant=given.quant,
        iters=given.iters if given.quant else None,
        modules=tuple(KitModule.model_validate(each) for each in arguments["modules"]),
    )
    texts = {
        "README.md": kit.card(name).encode(),
        KIT_FILE: (kit.model_dump_json(indent=1) + "\n").encode(),
        KIT_CONFIG: kit_config(kit, inputs.modules, inputs.shapes),
    }
    message = f"Init kit of rank {kit.rank}"
    branch = Branch("main", message, {KIT_WEIGHTS: arguments["row"]}, texts, [])
    base = (f"{inputs.base.name}@{inputs.base.commit}", inputs.base.revision_id)

    def still_granted(session: WriteSession) -> None:
        if granted_in(session, context.registry.settings, context.job_id) != grant:
            raise Conflict("what the job may read or make has changed while it ran: retry it")

    result = Result(name, grant.is_private, "adapter", base, [branch])
    commit = results.publish(context.registry, grant.caller, context.job_id, result, still_granted)
    return {"name": name, "commit": commit, "kit": kit.model_dump(mode="json")}


def _inputs(context: ComputeContext) -> _Inputs:
    """The base and its modules, if the job's user may still read it."""
    grant = granted(context.registry, context.job_id)
    known = context.memo.get("kit")
    if isinstance(known, _Inputs) and known.grant == grant:
        return known
    arguments = PissaInitArguments.model_validate(grant.arguments)
    (row,) = grant.revisions
    base = load_model(context.registry, context.reader, row, context.job_id)
    if any(file.path == CONFIG_FILE for file in base.files):
        raise CannotAdapt(f"{base.title} is an adapter: name the model that it belongs to")
    shapes = {name: (each.ref.dtype, each.ref.shape) for name, each in base.tensors.items()}
    modules = modules_of(shapes, arguments.targets, base.title)
    inputs = _Inputs(grant, arguments, base, modules, is_transposed(context, base))
    context.memo["kit"] = inputs
    return inputs


def _decomposed(context: ComputeContext, inputs: _Inputs, module: str) -> tuple[Factors, KitModule]:
    """The factors of a module's weight, rounded to the kit's dtype, and what is told of them."""
    given = inputs.arguments
    stored = read_matrix(context, inputs.base.tensors[f"{module}.weight"], inputs.base.title)
    weight = np.ascontiguousarray(stored.T) if inputs.is_transposed else stored
    iterations = None if given.exact else given.niter
    found = principal_spectrum(weight, given.rank, iterations=iterations, seed=given.seed)
    factors = initial_factors(found, given.rank, given.scale)
    errors = None
    if given.quant is not None:
        factors = quantized_start(
            weight, given.rank, given.scale,
            iters=given.iters, iterations=iterations, seed=given.seed,
        ).factors  # fmt: skip
    factors = Factors(
        rounded(factors.down, given.dtype, module), rounded(factors.up, given.dtype, module)
    )
    if given.quant is not None:
        # Of the factors as they are stored, from which whoever trains makes the residual.
        start = QuantizedStart(factors, residual_of(weight, factors, given.scale))
        errors = quantization_errors(weight, start, given.scale)
    norm = float(np.linalg.norm(weight)) ** 2
    told = KitModule(
        module=module,
        shape=inputs.shape(module),
        energy=float((found.values**2).sum()) / norm if norm else 0.0,
        largest=float(found.values[0]),
        smallest=float(found.values[-1]),
        plain_error=None if errors is None else errors.plain,
        fitted_error=None if errors is None else errors.fitted,
    )
    return factors, told


def _place(context: ComputeContext, inputs: _Inputs, key: str) -> tuple[str, dict[str, Any] | None]:
    """(name of the new repository, the result of the job that made the same kit before)"""
    given, base, caller = inputs.arguments, inputs.base, inputs.grant.caller
    space = base.name.partition("/")[0]
    spaces = [space] if base.is_private else list(dict.fromkeys((space, caller.name)))
    names = default_names(given, key, spaces)
    if given.name is not None:
        return given.name, None
    for name in names:
        known = _known(context, caller, name)
        if known is not None and known["kit"]["key"] == key:
            return name, known
    for name in names:
        try:
            with context.registry.db.read() as session:
                free_namespace(session, context.registry.settings, caller, name)
        except (Forbidden, RepositoryExists):
            continue
        return name, None
    raise Forbidden(f"{caller.name} may not make a repository in {space}: name one by --name")


def _known(context: ComputeContext, caller: Caller, name: str) -> dict[str, Any] | None:
    """A kit of this name as the job that made it told of it; None if there is none."""
    try:
        row = readable_revision(context.registry, caller, name)
        with context.registry.db.read() as session:
            revision = session.get_one(Revision, row)
            entry = entries_at(session, revision, [KIT_FILE]).get(KIT_FILE)
        data = None if entry is None else read_small(context.reader, entry, _MAX_KIT_FILE)
        kit = Kit.model_validate_json(data or b"")
    except (RegistryError, ValidationError):
        return None
    return {"name": name, "commit": revision.commit, "kit": kit.model_dump(mode="json")}
