"""The report on one adapter: what it is, whether it fits its base, and where it can be served."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.adapters.inspection.config import AdapterConfig, parse_adapter_config
from deltahub.methods.adapters.inspection.engines import State, Verdict, verdicts
from deltahub.methods.adapters.inspection.fit import Fit, check_fit
from deltahub.methods.adapters.inspection.folder import Folder, look_at
from deltahub.methods.adapters.inspection.shapes import TensorShape
from deltahub.methods.adapters.inspection.starts import Rule, Start, start_of, why_not_converted
from deltahub.methods.adapters.names import quoted


@dataclass(frozen=True)
class BaseAtHand:
    """The base that an adapter is inspected against. commit: None for a folder. differs: its
    weights are not those that the adapter was trained on, as far as is known.
    """

    name: str
    tensors: Mapping[str, TensorShape]
    commit: str | None = None
    differs: bool = False


class ReportedBase(BaseModel):
    """The base of an adapter. commit: null if the hub does not have it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    commit: str | None = None
    is_at_hand: bool = Field(description="The adapter was compared with its tensors.")
    differs: bool = Field(default=False, description="Its weights are not those of the training.")


class AdapterReport(BaseModel):
    """What an adapter is, and what can be done with it. A newer hub may tell more."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int = 1
    title: str
    peft_type: str
    init: str = Field(description="init_lora_weights, in lower case.")
    rule: Literal["plain", "from_base", "needs_init", "quantizer", "unknown"] = Field(
        description="What is needed to add the adapter to the original base."
    )
    ranks: list[int] = Field(description="The ranks of its modules, each once.")
    scales: list[float] = Field(description="The scales s in W + s B A, each once.")
    base: ReportedBase | None = Field(description="null if the configuration names none.")
    n_modules: int = Field(description="Modules with factors A and B.")
    extras: dict[str, int] = Field(description="What is there beside them -> tensors.")
    initial_factors: str | None = Field(
        description="The folder, or the init kit org/kit@commit, that has A0 and B0."
    )
    faults: list[str] = Field(description="Sentences; empty if it is whole and fits its base.")
    notes: list[str] = Field(description="Sentences on what could not be checked.")
    state: Literal["plain", "convertible", "quarantined", "broken"] = Field(
        description="plain: serve it as it is. convertible: it changed its base, and can be made a"
        " plain LoRA. quarantined: not to be served as a LoRA. broken: it has faults."
    )
    why: str = Field(description="A sentence on how it was initialized.")
    way_out: str = Field(description="What its owner can do; empty if nothing needs to be done.")
    verdicts: list[Verdict] = Field(description="One for each engine.")

    def sentences(self) -> list[str]:
        """The report for a terminal, a line each."""
        lines = [
            f"{self.title}: {self.peft_type}, {self.n_modules:,} modules, {_ranks(self.ranks)},"
            f" init_lora_weights {quoted(self.init)}: {self.state}",
            f"base: {_base(self.base)}",
            *(f"fault: {fault}" for fault in self.faults),
            *(f"note: {note}" for note in self.notes),
        ]
        if self.extras:
            extras = ", ".join(f"{kind} ({count:,})" for kind, count in self.extras.items())
            lines.append(f"beside A and B: {extras}")
        if self.state in ("convertible", "quarantined"):
            lines.append(f"why: {self.why}")
        if self.way_out:
            lines.append(f"way out: {self.way_out}")
        for verdict in self.verdicts:
            reasons = f" ({'; '.join(verdict.reasons)})" if verdict.reasons else ""
            lines.append(f"{verdict.engine}: {verdict.verdict}{reasons}")
        return lines


def _ranks(ranks: list[int]) -> str:
    if not ranks:
        return "no rank"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def _base(base: ReportedBase | None) -> str:
    if base is None:
        return "not named"
    name = f"{quoted(base.name)[1:-1]}{f'@{base.commit[:12]}' if base.commit else ''}"
    return name if base.is_at_hand else f"{name}, which is not at hand"


def inspect_adapter(
    config_bytes: bytes,
    tensors: Mapping[str, TensorShape],
    files: Collection[str],
    base: BaseAtHand | None,
    title: str,
) -> AdapterReport:
    """The report on an adapter.

    config_bytes: adapter_config.json. tensors: of its adapter_model.safetensors; empty without
    one. files: all paths below the adapter's folder. base: None if it is not at hand. title: what
    messages call the adapter. BadAdapter for a configuration that cannot be read.
    """
    config = parse_adapter_config(config_bytes, title)
    folder = look_at(files, title)
    named = base.name if base else config.base_model_name_or_path
    fit = check_fit(config, tensors, base.tensors if base else None, title, named or "the base")
    start = start_of(config)
    # Without weights the folder says why.
    own_faults = fit.faults if tensors or not folder.faults else ()
    faults = [*folder.faults, *own_faults]
    situation = _Situation(config, start, folder, base)
    state = State.BROKEN if faults else situation.state()
    fit = Fit(fit.modules, fit.extras, tuple(faults), fit.notes)
    differs = base is not None and base.differs
    return AdapterReport(
        title=title,
        peft_type=config.peft_type,
        init=start.init,
        rule=start.rule.value,
        ranks=fit.ranks,
        scales=fit.scales,
        base=_reported(base, named),
        n_modules=len(fit.modules),
        extras={kind: len(names) for kind, names in fit.extras.items()},
        initial_factors=situation.initial_factors(),
        faults=faults,
        notes=[*fit.notes, *situation.notes()],
        state=state.value,
        why=start.why,
        way_out=situation.way_out(state),
        verdicts=verdicts(config, fit, state, differs),
    )


def _reported(base: BaseAtHand | None, named: str | None) -> ReportedBase | None:
    if base is not None:
        return ReportedBase(
            name=base.name, commit=base.commit, is_at_hand=True, differs=base.differs
        )
    return ReportedBase(name=named, is_at_hand=False) if named else None


@dataclass(frozen=True)
class _Situation:
    config: AdapterConfig
    start: Start
    folder: Folder
    base: BaseAtHand | None

    def initial_factors(self) -> str | None:
        """Where A0 and B0 of an adapter that changed its base can be had."""
        if self.start.rule in (Rule.PLAIN, Rule.UNKNOWN, Rule.QUANTIZER):
            return None
        return next(iter(self.folder.inits), None) or self.config.deltahub_kit

    def state(self) -> State:
        """The state of an adapter without faults."""
        if self.start.rule == Rule.PLAIN:
            return State.PLAIN
        if why_not_converted(self.config):
            return State.QUARANTINED
        has_base = self.base is not None and not self.base.differs
        can_compute = self.start.rule == Rule.FROM_BASE and has_base
        return State.CONVERTIBLE if can_compute or self.initial_factors() else State.QUARANTINED

    def way_out(self, state: State) -> str:
        """What the owner can do."""
        if state == State.BROKEN:
            return "mend the faults, and push it again"
        if state == State.CONVERTIBLE:
            return "let the hub convert it to a plain LoRA, of up to twice the rank"
        if state == State.PLAIN:
            return ""
        obstacle = why_not_converted(self.config)
        if obstacle:
            return (
                f"it cannot be converted, because {obstacle}: merge it with PEFT where it was"
                " trained, and push the merged model"
            )
        if self.start.rule == Rule.FROM_BASE:
            return "push the base that it was trained on to the hub, and name it"
        return self.start.way_out

    def notes(self) -> list[str]:
        """What looks odd."""
        if self.start.rule == Rule.PLAIN and self.folder.inits and self.config.is_lora:
            return [
                f"{self.folder.inits[0]}/ lies beside it, though init_lora_weights says"
                f" {quoted(self.config.init)}: right if PEFT has converted it, wrong if the field"
                " was edited by hand"
            ]
        return []
