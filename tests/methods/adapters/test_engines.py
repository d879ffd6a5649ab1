"""The rules on engines: each has a source, and each condition is met by some adapter."""

import re
from dataclasses import replace
from typing import Any

import pytest

from deltahub.methods.adapters.inspection.config import AdapterConfig
from deltahub.methods.adapters.inspection.engines import (
    CONDITIONS,
    Answer,
    State,
    Verdict,
    engine_rules,
    verdicts,
)
from deltahub.methods.adapters.inspection.fit import Fit, Module

ENGINES = ["transformers with peft", "vLLM", "SGLang", "llama.cpp"]
CONFIG = AdapterConfig("LORA", r=16, lora_alpha=32.0)
Q = "model.layers.0.self_attn.q_proj"


def module(name: str = Q, rank: int = 16, scale: float = 2.0) -> Module:
    return Module(name, f"{name}.weight", rank, 32.0, scale)


FIT = Fit((module(),))


def of(engine: str, config: AdapterConfig = CONFIG, fit: Fit = FIT, **more: Any) -> Verdict:
    state = more.pop("state", State.PLAIN)
    found = verdicts(config, fit, state, **more)
    return next(verdict for verdict in found if verdict.engine == engine)


def test_every_rule_has_a_known_condition_and_a_source() -> None:
    rules = engine_rules()
    assert list(dict.fromkeys(rule.engine for rule in rules)) == ENGINES
    for rule in rules:
        assert rule.condition.name in CONDITIONS, rule
        assert re.match(r"https://\S+\.\S+", rule.source), rule
        assert rule.reason or rule.condition.name == "always", rule
    assert {rule.condition.name for rule in rules} == set(CONDITIONS)
    for engine in ENGINES:
        own = [rule for rule in rules if rule.engine == engine]
        assert len({rule.version for rule in own}) == 1
        assert [rule.condition.name for rule in own].count("always") == 1


def test_a_plain_adapter_loads_everywhere() -> None:
    assert {verdict.engine: verdict.verdict for verdict in verdicts(CONFIG, FIT, State.PLAIN)} == {
        "transformers with peft": Answer.LOADS,
        "vLLM": Answer.LOADS,
        "SGLang": Answer.LOADS,
        "llama.cpp": Answer.CONVERTED,
    }


def test_vllm_is_told_the_smallest_rank_that_it_takes() -> None:
    for rank, said in ((16, None), (17, "32"), (64, "64"), (257, "320"), (512, "512")):
        verdict = of("vLLM", fit=Fit((module(rank=rank),)))
        assert verdict.verdict == Answer.LOADS
        assert said is None or any(f"--max-lora-rank {said}:" in each for each in verdict.reasons)
    verdict = of("vLLM", fit=Fit((module(rank=513),)))
    assert verdict.verdict == Answer.DOES_NOT
    assert "rank 513 is above 512" in verdict.reasons[0]


def test_a_conversion_mends_what_the_initialization_did_and_nothing_else() -> None:
    config = replace(CONFIG, init="pissa_niter_4")
    for engine in ENGINES:
        quarantined = of(engine, config, state=State.QUARANTINED)
        assert quarantined.verdict == Answer.DOES_NOT
        assert any("pissa_niter_4" in reason for reason in quarantined.reasons)
        assert of(engine, config, state=State.CONVERTIBLE).verdict == Answer.CONVERTED
    with_head = replace(config, modules_to_save=("lm_head",))
    assert of("vLLM", with_head, state=State.CONVERTIBLE).verdict == Answer.DOES_NOT
    # Twice the rank.
    reasons = of("vLLM", config, state=State.CONVERTIBLE).reasons
    assert any("--max-lora-rank 32" in reason for reason in reasons)


HEADS = {"heads": ("base_model.model.score.weight",)}
CASES: dict[str, tuple[AdapterConfig, Fit, list[Answer]]] = {
    "DoRA": (replace(CONFIG, use_dora=True), FIT, [Answer.LOADS] + [Answer.DOES_NOT] * 3),
    "a head": (
        replace(CONFIG, modules_to_save=("lm_head",)), FIT,
        [Answer.LOADS, Answer.DOES_NOT, Answer.UNKNOWN, Answer.DOES_NOT]),
    "a classifier": (
        CONFIG, Fit((module(),), HEADS),
        [Answer.LOADS, Answer.UNKNOWN, Answer.UNKNOWN, Answer.DOES_NOT]),
    "rslora": (
        replace(CONFIG, use_rslora=True), Fit((module(scale=8.0),)),
        [Answer.LOADS, Answer.LOADS, Answer.CONVERTED, Answer.CONVERTED]),
    "scales of its own": (
        CONFIG, Fit((module(), module("other", 8, 2.0), module("third", 16, 3.0))),
        [Answer.LOADS, Answer.DOES_NOT, Answer.UNKNOWN, Answer.DOES_NOT]),
    "ranks of its own": (
        CONFIG, Fit((module(), module("other", 8, 4.0))),
        [Answer.LOADS, Answer.DOES_NOT, Answer.UNKNOWN, Answer.CONVERTED]),
    "aLoRA": (
        replace(CONFIG, alora_invocation_tokens=(1,)), FIT,
        [Answer.LOADS, Answer.DOES_NOT, Answer.DOES_NOT, Answer.CONVERTED]),
    "IA3": (
        AdapterConfig("IA3"), Fit(), [Answer.LOADS] + [Answer.DOES_NOT] * 3),
    "an unknown type": (
        AdapterConfig("NEWTUNING"), Fit(), [Answer.UNKNOWN] + [Answer.DOES_NOT] * 3),
    "an unknown start": (
        replace(CONFIG, init="milora"), FIT, [Answer.DOES_NOT] + [Answer.UNKNOWN] * 3),
    "LoftQ": (replace(CONFIG, init="loftq"), FIT, [Answer.UNKNOWN] + [Answer.DOES_NOT] * 3),
    "parameters": (
        replace(CONFIG, target_parameters=("w",)), FIT, [Answer.LOADS] + [Answer.UNKNOWN] * 3),
    "a tied head": (
        CONFIG, Fit((Module("lm_head", "model.embed_tokens.weight", 16, 32.0, 2.0),)),
        [Answer.LOADS, Answer.UNKNOWN, Answer.LOADS, Answer.DOES_NOT]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_engine_answers_for_itself(case: str) -> None:
    config, fit, expected = CASES[case]
    found = verdicts(config, fit, State.PLAIN)
    assert [verdict.verdict for verdict in found] == expected
    for verdict in found:
        assert len(verdict.reasons) == len(verdict.sources)
        assert not any("{" in reason for reason in verdict.reasons)


def test_how_to_serve_an_adapter_is_not_told_where_it_cannot_be_served() -> None:
    (reason,) = of("llama.cpp", replace(CONFIG, use_dora=True)).reasons
    assert reason == "the converter stops at the magnitudes of DoRA"


def test_sglang_is_told_the_alpha_that_gives_the_same_scale() -> None:
    config, fit, _ = CASES["rslora"]
    assert "lora_alpha to 128" in of("SGLang", config, fit).reasons[0]  # 128 / 16 = 32 / sqrt(16)


def test_another_base_makes_every_answer_unknown_or_worse() -> None:
    for verdict in verdicts(CONFIG, FIT, State.PLAIN, base_differs=True):
        assert verdict.verdict == Answer.UNKNOWN
    pissa = replace(CONFIG, init="pissa")
    for verdict in verdicts(pissa, FIT, State.QUARANTINED, base_differs=True):
        assert verdict.verdict == Answer.DOES_NOT


def test_a_broken_adapter_loads_nowhere_and_the_fault_says_why() -> None:
    fit = Fit(faults=("it has A without B",))
    for verdict in verdicts(CONFIG, fit, State.BROKEN):
        assert (verdict.verdict, verdict.reasons) == (Answer.DOES_NOT, ["it has A without B"])
