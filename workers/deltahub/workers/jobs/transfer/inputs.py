"""What the steps of a move work with: the adapter, both bases, and what its task looks like."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from deltahub.codecs.exports.file import FILE_NAME
from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE, LoraConfig
from deltahub.methods.errors import CannotTransfer
from deltahub.methods.kinds.kind import Shapes
from deltahub.methods.kinds.transfer_adapter import MOST_DRAWS, TransferAdapterArguments
from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.recipe import Recipe
from deltahub.registry.db.models import File
from deltahub.registry.errors import Conflict
from deltahub.registry.results.asked import Granted, granted
from deltahub.registry.results.inputs import InputModel, load_model, read_input
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.adapters.declared_base import base_of
from deltahub.workers.jobs.transfer.kits import (
    UsableKit,
    pool_kit,
    usable_kit,
    usable_kit_id,
)

CONFIG: Final = "config.json"
# A tokenizer has one of these files.
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_DEFAULT_N: Final = 250


@dataclass(frozen=True)
class TransferInputs:
    """grant: what the user may read and make, checked at each step. config: of the adapter.

    kit: of the adapter; no_kit: why there is none. pool: the kits from whose seeds inputs are made
    up for several adapters, perhaps its own among them; none if it makes up its own inputs.
    """

    grant: Granted
    arguments: TransferAdapterArguments
    adapter: InputModel
    source: InputModel
    target: InputModel
    config: bytes
    kit: UsableKit | None
    no_kit: str | None
    pool: tuple[UsableKit, ...] = ()

    @property
    def raw_config(self) -> Mapping[str, Any]:
        found: dict[str, Any] = json.loads(self.config)
        return found

    @property
    def kit_id(self) -> str | None:
        return None if self.kit is None else self.kit.stored.id

    @property
    def kits(self) -> dict[str, Any]:
        """The ids of the kits that a job began with, which every step is given."""
        return {"kit": self.kit_id, "pool": [each.stored.id for each in self.pool]}

    @property
    def seeds(self) -> tuple[str, ...]:
        """Inputs of the task; none if nobody has given any."""
        if self.kit is not None:
            return tuple(self.kit.kit.inputs)
        return self.arguments.inputs_given

    @property
    def is_served(self) -> bool:
        """Whether the move of another adapter makes inputs up first."""
        return bool(self.pool) and self.pool[0].stored.id != self.kit_id

    @property
    def is_pool_of_others(self) -> bool:
        """Whether inputs are made up from kits of other adapters, too."""
        return any(each.stored.id != self.kit_id for each in self.pool)

    @property
    def examples(self) -> list[tuple[str, str | None]]:
        """The seeds with their completions, as far as these are known."""
        if self.kit is not None:
            return [(each.input, each.completion) for each in self.kit.kit.seeds]
        return [(each, None) for each in self.seeds]

    @property
    def contract(self) -> Contract:
        if self.kit is not None:
            return self.kit.kit.contract
        given = self.arguments
        return Contract(prompt=given.template, max_new_tokens=given.max_new_tokens)

    @property
    def n(self) -> int:
        """Made-up inputs that are kept: no more than may be drawn, if the kit sets their number."""
        own = _DEFAULT_N if self.kit is None else max(self.kit.kit.n_examples, 5)
        return self.arguments.n or max(min(own, MOST_DRAWS // self.arguments.budget), 5)

    @property
    def judge(self) -> UsableKit | None:
        """The kit whose discriminator filters; None without one that fits."""
        return self.kit if self.kit is not None and self.kit.fault is None else None

    @property
    def has_same_tokenizer(self) -> bool:
        """Whether both bases have the same tokens, as far as their files show it."""
        both = [
            {file.path: file.row for file in model.files if file.path in _TOKENIZERS}
            for model in (self.source, self.target)
        ]
        return bool(both[0]) and both[0] == both[1]

    @property
    def has_same_modules(self) -> bool:
        """Whether both bases have tensors of the same names, so that one name means one module."""
        return self.source.tensors.keys() == self.target.tensors.keys()

    def recipe(self) -> Recipe:
        """How a student is trained: as the old adapter, unless the arguments say otherwise.

        Its modules are those of the old one that the new base has, too; without any, PEFT's own.
        """
        given, raw = self.arguments, self.raw_config
        own_rank = raw.get("r") if type(raw.get("r")) is int else None
        rank = given.rank or own_rank or 8
        alpha = raw.get("lora_alpha")
        own_scale = alpha / own_rank if isinstance(alpha, int | float) and own_rank else 1.0
        named = raw.get("target_modules")
        lasts = {each.removesuffix(".weight").rpartition(".")[2] for each in self.target.tensors}
        targets = [str(each) for each in named] if isinstance(named, list) else []
        kept = sorted({each.rpartition(".")[2] for each in targets} & lasts)
        recipe = Recipe(
            kind=given.student or ("dora" if raw.get("use_dora") else "lora"),
            rank=rank,
            alpha=own_scale * rank,
            targets=tuple(kept) or None,
            seed=given.seed,
        )
        changes = {"epochs": given.epochs, "learning_rate": given.learning_rate}
        return recipe.model_copy(update={k: v for k, v in changes.items() if v is not None})


def load_inputs(context: ComputeContext, step: Mapping[str, Any]) -> TransferInputs:
    """The models, if the job's user may still read them. CannotTransfer for what cannot be moved.

    step: the arguments of a step, which name the kits that the job began with; Conflict if there
    are others now. The errors of `granted`, `load_model` and `base_of`.
    """
    grant = granted(context.registry, context.job_id)
    known = context.memo.get("transfer")
    found = known if isinstance(known, TransferInputs) and known.grant == grant else None
    if found is None:
        arguments = TransferAdapterArguments.model_validate(grant.arguments)
        found = inputs_of(context, grant, arguments, grant.revisions)
        kits = found.kits
    else:
        kits = _kits_now(context, found)
    if any(key in step and step[key] != now for key, now in kits.items()):
        raise Conflict(
            f"the kit of {found.adapter.name}, or one of its pool, was replaced or deleted while"
            " the job ran: start a new one"
        )
    context.memo["transfer"] = found
    return found


def _kits_now(context: ComputeContext, found: TransferInputs) -> dict[str, Any]:
    """The same as found.kits, looked for again: whoever deletes a kit, or may no longer have it
    used, ends its use at once.
    """
    caller, rows = found.grant.caller, found.grant.revisions
    own, *pool = (
        usable_kit_id(context, caller, row)
        for row in (found.adapter.revision_id, *rows[len(rows) - len(found.pool) :])
    )
    return {"kit": own, "pool": pool}


def inputs_of(
    context: ComputeContext,
    grant: Granted,
    arguments: TransferAdapterArguments,
    revisions: Sequence[int],
) -> TransferInputs:
    """Do the same as load_inputs for any adapter of a job. revisions: the rows of the adapter, the
    target, and, where the arguments name them, the source and the pool's adapters, all of which
    the job's user may read.
    """
    adapter = load_model(context.registry, context.reader, revisions[0], context.job_id)
    config = _config(context, adapter)
    target = load_base(context, revisions[1])
    if arguments.source_base is not None:
        source = load_base(context, revisions[2])
    else:
        source = base_of(context, grant.caller, adapter, None)
        _require_base(source)
    if source.revision_id == target.revision_id:
        raise CannotTransfer(f"{adapter.title} belongs to {target.title} already")
    kit, no_kit = usable_kit(context, grant.caller, adapter, source)
    if kit is not None and arguments.prompts is not None:
        raise CannotTransfer(f"{adapter.title} has a kit, which shows its task: leave prompts out")
    if kit is not None and kit.kit.adapter_sha256 != _sha256_of(context, adapter, WEIGHTS_FILE):
        # The adapter was trained again since: what was measured of it then says nothing now.
        plain = {"source_accuracy": None, "n_tests": 0}
        kit = replace(kit, kit=kit.kit.model_copy(update=plain))
    pool: tuple[UsableKit, ...] = ()
    if arguments.pool is not None:
        if kit is None or kit.fault is not None:
            why = no_kit if kit is None else kit.fault
            raise CannotTransfer(
                f"shared inputs are filtered by a discriminator, and {adapter.name} has none that"
                f" fits ({why}): leave pool out"
            )
        pool = tuple(
            pool_kit(context, grant.caller, adapter, kit, row)
            for row in revisions[len(revisions) - len(arguments.pool) :]
        )
    return TransferInputs(grant, arguments, adapter, source, target, config, kit, no_kit, pool)


def load_base(context: ComputeContext, revision_id: int) -> InputModel:
    """A model that has adapters; the same object again in the same process.

    The errors of load_model; CannotTransfer for what nothing can load as a base.
    """
    key = f"base {revision_id}"
    known = context.memo.get(key)
    if isinstance(known, InputModel):
        return known
    found = load_model(context.registry, context.reader, revision_id, context.job_id)
    _require_base(found)
    context.memo[key] = found
    return found


def shapes_of(model: InputModel) -> Shapes:
    return {name: (each.ref.dtype, tuple(each.ref.shape)) for name, each in model.tensors.items()}


def title_of(model: InputModel) -> str:
    """`namespace/name@commit`, as reports name a revision."""
    return f"{model.name}@{model.commit}"


def _config(context: ComputeContext, adapter: InputModel) -> bytes:
    if not any(file.path == CONFIG_FILE for file in adapter.files):
        raise CannotTransfer(
            f"{adapter.title} has no {CONFIG_FILE}: push an adapter as PEFT saves it"
        )
    if not any(file.path == WEIGHTS_FILE for file in adapter.files):
        raise CannotTransfer(
            f"{adapter.title} has no {WEIGHTS_FILE}: push an adapter as PEFT saves it"
        )
    data = read_input(context.registry, context.reader, adapter, CONFIG_FILE)
    try:
        raw = json.loads(data)
        start = str(raw.get("init_lora_weights", True)).lower()
    except (ValueError, AttributeError) as exc:
        raise CannotTransfer(f"{CONFIG_FILE} of {adapter.title} is no JSON object: {exc}") from exc
    if LoraConfig(1.0, {}, False, False, start).changes_base:
        raise CannotTransfer(
            f"{adapter.title} was started by {start}, which changed its base: convert it to a plain"
            f" LoRA first (deltahub adapter convert {adapter.name})"
        )
    return data


def _require_base(model: InputModel) -> None:
    paths = {file.path for file in model.files}
    if CONFIG_FILE in paths:
        raise CannotTransfer(f"{model.title} is an adapter: name the model that it belongs to")
    if FILE_NAME in paths:
        raise CannotTransfer(f"{model.title} is an export: name the model that it was made from")
    if CONFIG not in paths:
        raise CannotTransfer(f"{model.title} has no {CONFIG}, so that nothing can load it: push it")
    if paths.isdisjoint(_TOKENIZERS):
        raise CannotTransfer(
            f"{model.title} has no tokenizer ({', '.join(_TOKENIZERS)}), so that it cannot read"
            " text: push it"
        )


def _sha256_of(context: ComputeContext, model: InputModel, path: str) -> str:
    (row,) = [file.row for file in model.files if file.path == path]
    with context.registry.db.read() as session:
        return session.get_one(File, row).sha256
