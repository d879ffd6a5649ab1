"""What each kind of initialization needs before its adapter means anything on the base."""

import pytest

from deltahub.methods.adapters.inspection.config import AdapterConfig
from deltahub.methods.adapters.inspection.starts import Rule, start_of, why_not_converted

RULES = {
    Rule.PLAIN: ["true", "false", "gaussian", "orthogonal", "eva", "mica"],
    Rule.FROM_BASE: ["pissa", "olora"],
    Rule.NEEDS_INIT: ["pissa_niter_4", "pissa_niter_16", "lora_ga", "corda"],
    Rule.QUANTIZER: ["loftq"],
    Rule.UNKNOWN: ["", "pissa_niter_", "pissa2", "corda_next", "milora", "none"],
}


@pytest.mark.parametrize(
    ("init", "rule"), [(init, rule) for rule, inits in RULES.items() for init in inits]
)
def test_the_rule_of_each_initialization(init: str, rule: Rule) -> None:
    start = start_of(AdapterConfig("LORA", init=init))
    assert (start.init, start.rule) == (init, rule)
    assert start.why
    assert bool(start.way_out) == (rule != Rule.PLAIN)


def test_types_that_leave_the_base_alone_are_plain_and_others_unknown() -> None:
    assert start_of(AdapterConfig("IA3")).rule == Rule.PLAIN
    assert start_of(AdapterConfig("OSF")).rule == Rule.UNKNOWN


def test_kasa_cuts_the_base_whatever_init_lora_weights_says() -> None:
    start = start_of(AdapterConfig("LORA", variants=("kasa_config",)))
    assert (start.init, start.rule) == ("kasa", Rule.UNKNOWN)


def test_what_keeps_an_adapter_from_being_converted_is_named() -> None:
    assert why_not_converted(AdapterConfig("LORA", init="pissa", use_rslora=True)) is None
    for config, why in (
        (AdapterConfig("LORA", use_dora=True), "use_dora"),
        (AdapterConfig("LORA", alora_invocation_tokens=(1,)), "alora_invocation_tokens"),
        (AdapterConfig("LORA", variants=("use_bdlora",)), "use_bdlora"),
    ):
        assert why in str(why_not_converted(config))
