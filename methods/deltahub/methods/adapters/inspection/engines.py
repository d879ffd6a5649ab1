"""Where an adapter can be served: the rules of engines.json, applied to one adapter.

Each rule is data with its source, because engines change faster than this code. The test of this
repository proves the rules of transformers with peft; the others are read from documentation,
sources and issues.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.adapters.inspection.config import AdapterConfig
from deltahub.methods.adapters.inspection.fit import HEADS, Fit
from deltahub.methods.adapters.inspection.starts import Start, start_of
from deltahub.methods.adapters.inspection.targets import HEAD
from deltahub.methods.adapters.names import quoted

RULES_FILE: Final = Path(__file__).with_name("engines.json")


class Answer(StrEnum):
    """Whether an engine gives the outputs of the trained model with an adapter."""

    LOADS = "loads"
    CONVERTED = "loads after conversion"
    UNKNOWN = "unknown"
    DOES_NOT = "does not load"


_FROM_BEST: Final = tuple(Answer)


class State(StrEnum):
    """What a hub can do with an adapter. plain: it belongs to the original base as it is.
    convertible: it changed its base, and can be made a plain LoRA. quarantined: it changed its
    base, and cannot, or nobody knows. broken: it has faults.
    """

    PLAIN = "plain"
    CONVERTIBLE = "convertible"
    QUARANTINED = "quarantined"
    BROKEN = "broken"


class Condition(BaseModel):
    """When a rule applies. name: one of CONDITIONS; value: its parameter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    value: Any = None


class EngineRule(BaseModel):
    """One fact about an engine.

    reason: a text with names of _facts in braces. is_mended: the hub's conversion of an adapter
    that changed its base takes the obstacle away. choices: values of the engine's option for the
    rank.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: str
    version: str
    date: str = Field(pattern=r"\d{4}-\d\d-\d\d", description="When the source was read.")
    source: str
    condition: Condition
    verdict: Answer
    reason: str = ""
    is_mended: bool = False
    choices: list[int] = []


class Verdict(BaseModel):
    """Whether one engine can serve an adapter, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: str
    version: str = Field(description="The version whose rules these are.")
    verdict: Literal["loads", "loads after conversion", "unknown", "does not load"]
    reasons: list[str] = Field(description="Sentences; the most important first.")
    sources: list[str] = Field(description="Where the rules come from, one for each reason.")


class _Case(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True, frozen=True)

    config: AdapterConfig
    fit: Fit
    state: State
    start: Start
    base_differs: bool

    @property
    def rank(self) -> int:
        """The largest rank that an engine would see: a conversion doubles it at most."""
        rank = max(self.fit.ranks, default=self.config.r)
        return 2 * rank if self.state == State.CONVERTIBLE else rank

    def has_option(self, name: str) -> bool:
        return name in self.config.variants or bool(getattr(self.config, name, None))


def _is_uneven(case: _Case) -> bool:
    config = case.config
    rank = config.r**0.5 if config.use_rslora else config.r
    expected = config.lora_alpha / rank
    return any(abs(scale - expected) > 1e-9 * abs(expected) for scale in case.fit.scales)


def _has_uneven_alphas(case: _Case) -> bool:
    """Whether lora_alpha, divided by the rank of each module, does not give its scale. A root of
    one rank is left out: one other alpha makes up for it.
    """
    config = case.config
    root = case.fit.ranks[0] ** 0.5 if config.use_rslora and len(case.fit.ranks) == 1 else 1.0
    return any(
        abs(module.scale - root * config.lora_alpha / module.rank) > 1e-9 * abs(module.scale)
        for module in case.fit.modules
    )


def _has_tied_head(case: _Case) -> bool:
    return any(
        f"{module.name}.weight".endswith(HEAD) and module.target and HEAD not in module.target
        for module in case.fit.modules
    )


# Name -> whether a rule with this condition and value applies.
CONDITIONS: Final[Mapping[str, Callable[[_Case, Any], bool]]] = {
    "always": lambda case, value: True,
    "init": lambda case, value: case.start.init in value and case.config.is_lora,
    "start": lambda case, value: case.start.rule in value and case.config.is_lora,
    "unknown init": lambda case, value: (
        case.start.rule == "unknown" and case.config.is_lora and case.start.init not in value
    ),
    "base differs": lambda case, value: case.base_differs and case.start.rule in value,
    "not LoRA": lambda case, value: not case.config.is_lora,
    "unknown type": lambda case, value: case.start.rule == "unknown" and not case.config.is_lora,
    "option": lambda case, value: case.has_option(value),
    "extras": lambda case, value: bool(case.fit.extras.get(value)),
    "heads beyond": lambda case, value: bool(set(_heads(case)) - set(value)),
    "heads among": lambda case, value: bool(_heads(case)) and set(_heads(case)) <= set(value),
    "rank above": lambda case, value: value[0] < case.rank <= value[1],
    "uneven scales": lambda case, value: _is_uneven(case),
    "uneven alphas": lambda case, value: _has_uneven_alphas(case),
    "uneven ranks": lambda case, value: len(case.fit.ranks) > 1 and not _is_uneven(case),
    "bias option": lambda case, value: case.config.bias != "none",
    "modules": lambda case, value: any(
        module.name.rpartition(".")[2] in value for module in case.fit.modules
    ),
    "tied head": lambda case, value: _has_tied_head(case),
    "rslora": lambda case, value: case.config.use_rslora and not _is_uneven(case),
}


def _heads(case: _Case) -> list[str]:
    stored = [name.split(".")[-2] for name in case.fit.extras.get(HEADS, ()) if "." in name]
    return [*case.config.modules_to_save, *stored]


@cache
def engine_rules() -> tuple[EngineRule, ...]:
    """All rules, in the order of the file."""
    return _Rules.model_validate_json(RULES_FILE.read_bytes()).rules


class _Rules(BaseModel):
    model_config = ConfigDict(extra="forbid")

    about: str
    rules: tuple[EngineRule, ...]


def verdicts(
    config: AdapterConfig, fit: Fit, state: State, base_differs: bool = False
) -> list[Verdict]:
    """For each engine, whether it gives the outputs of the trained model with this adapter.

    state: what the hub can do with it. base_differs: the weights of the base that the hub would
    serve are not those that the adapter names.
    """
    case = _Case(
        config=config,
        fit=fit,
        state=state,
        start=start_of(config),
        base_differs=base_differs,
    )
    by_engine: dict[str, list[EngineRule]] = {}
    for rule in engine_rules():
        by_engine.setdefault(rule.engine, []).append(rule)
    return [_verdict(case, rules) for rules in by_engine.values()]


def _verdict(case: _Case, rules: list[EngineRule]) -> Verdict:
    engine, version = rules[0].engine, rules[0].version
    if case.state == State.BROKEN:
        return Verdict(
            engine=engine,
            version=version,
            verdict=Answer.DOES_NOT.value,
            reasons=list(case.fit.faults[:1]) or ["its files have faults"],
            sources=["the files of the adapter"],
        )
    found = [
        (_answer(case, rule), rule)
        for rule in rules
        if CONDITIONS[rule.condition.name](case, rule.condition.value)
    ]
    found.sort(key=lambda each: -_FROM_BEST.index(each[0]))
    obstacles = [each for each in found if each[0] in (Answer.UNKNOWN, Answer.DOES_NOT)]
    # How to serve it tells nothing where it cannot be served.
    told = [rule for _, rule in obstacles or found if rule.reason]
    return Verdict(
        engine=engine,
        version=version,
        verdict=found[0][0].value,
        reasons=[rule.reason.format_map(_facts(case, rule)) for rule in told],
        sources=[rule.source for rule in told],
    )


def _answer(case: _Case, rule: EngineRule) -> Answer:
    if rule.is_mended and case.state == State.CONVERTIBLE:
        return Answer.CONVERTED
    return rule.verdict


def _facts(case: _Case, rule: EngineRule) -> dict[str, object]:
    config = case.config
    heads = sorted(set(_heads(case)))
    return {
        "rank": case.rank,
        "choice": next((choice for choice in rule.choices if choice >= case.rank), case.rank),
        "init": quoted(case.start.init),
        "peft_type": config.peft_type,
        "heads": ", ".join(map(quoted, heads[:5])),
        "root": f"{config.r**0.5:.4g}",
        "plain_alpha": f"{config.lora_alpha * config.r**0.5:.6g}",
    }
