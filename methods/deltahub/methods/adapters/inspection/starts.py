"""How an adapter was initialized, and so which weights it must be added to.

Some initializations take a part out of the base's weights and put it into the adapter (PiSSA,
arXiv 2404.02948; OLoRA, arXiv 2406.01775; CorDA, arXiv 2406.05223; LoRA-GA, arXiv 2407.05000;
LoftQ, arXiv 2310.08659). Such an adapter means nothing on the original base: s (B A - B0 A0) is
what training changed, and A0, B0 are the initial factors. What PEFT does is read from the source
of PEFT 0.21.2, `tuners/lora/layer.py`.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from deltahub.methods.adapters.inspection.config import AdapterConfig
from deltahub.methods.adapters.names import quoted

# Types of PEFT beside LORA that leave the weights of the base alone until somebody merges them.
OTHER_TYPES: Final = frozenset(
    {"ADALORA", "BOFT", "FOURIERFT", "HRA", "IA3", "LN_TUNING", "LOHA", "LOKR", "OFT"}
    | {"PREFIX_TUNING", "PROMPT_TUNING", "P_TUNING", "TRAINABLE_TOKENS", "VBLORA", "VERA"}
)


class Rule(StrEnum):
    """What is needed to add an adapter to the original base."""

    PLAIN = "plain"  # nothing: the base is as it was
    FROM_BASE = "from_base"  # A0 and B0, which can be computed from the base
    NEEDS_INIT = "needs_init"  # A0 and B0, or the changed base: nothing else gives them
    QUANTIZER = "quantizer"  # the quantizer that made the base of the training
    UNKNOWN = "unknown"  # this hub does not know


@dataclass(frozen=True)
class Start:
    """How an adapter was initialized. init: as configured; empty for types other than LORA.

    why, way_out: sentences for the owner of the adapter; way_out is empty if nothing is to be done.
    """

    init: str
    rule: Rule
    why: str
    way_out: str = ""


_SAVE_INIT: Final = (
    "push the initial adapter beside it, in a folder whose name ends in _init"
    " (PEFT: save_pretrained before the first step), or convert it where it was trained"
    " (path_initial_model_for_weight_conversion of PEFT's save_pretrained)"
)
_PLAIN: Final = {
    "true": "B starts at zero",
    "false": "A and B start at random, and are all of the adapter",
    "gaussian": "B starts at zero",
    "orthogonal": "A and B start orthogonal, so that their product is zero",
    "eva": "A starts at directions of the activations, B at zero",
    "mica": "B starts at the least directions of the weight, A at zero",
}
_FROM_BASE: Final = {
    "pissa": "the first singular vectors of the base's weights",
    "olora": "the first columns of the QR decomposition of the base's weights",
}
_NEEDS_INIT: Final = {
    "lora_ga": "gradients of the first batches",
    "corda": "covariances of the activations",
}


def start_of(config: AdapterConfig) -> Start:
    """How the adapter was initialized, by its configuration alone.

    A configuration may say true where it was PiSSA (the README of PiSSA's authors sets it so), or
    may be edited: nobody can tell from it.
    """
    init = config.init
    if not config.is_lora:
        return _start_of_type(config.peft_type)
    if "kasa_config" in config.variants:
        return Start(
            "kasa",
            Rule.UNKNOWN,
            "KaSA cuts the least singular values off the base's weights, and has a diagonal between"
            " A and B",
            "load it with PEFT, which cuts the base again, and push the merged model",
        )
    if init in _PLAIN:
        return Start(init, Rule.PLAIN, f"{_PLAIN[init]}: the base's weights stay as they are")
    if init in _FROM_BASE:
        return _start_from_base(config)
    if re.fullmatch(r"pissa_niter_\d+", init):
        return Start(
            init,
            Rule.NEEDS_INIT,
            "it took a part out of the base's weights by a randomized SVD without a seed, so that"
            " its initial factors cannot be computed again",
            _SAVE_INIT,
        )
    if init in _NEEDS_INIT:
        return Start(
            init,
            Rule.NEEDS_INIT,
            f"it took a part out of the base's weights that follows from {_NEEDS_INIT[init]}, which"
            " nobody has kept",
            _SAVE_INIT,
        )
    if init == "loftq":
        return Start(
            init,
            Rule.QUANTIZER,
            "it makes up for the error of a base that was quantized for its training",
            "load it with PEFT on the base that the same quantizer has quantized (loftq_config),"
            " and push the merged model",
        )
    return Start(
        init,
        Rule.UNKNOWN,
        f"this hub does not know the initialization {quoted(init)}",
        "say true in init_lora_weights if it leaves the base's weights as they are; else load it"
        " where it was trained, and push the merged model",
    )


def _start_from_base(config: AdapterConfig) -> Start:
    init = config.init
    return Start(
        init,
        Rule.FROM_BASE,
        f"it took {_FROM_BASE[init]} out of the base's weights; they can be computed from the base"
        " again",
        "let the hub convert it to a plain LoRA, of up to twice the rank",
    )


def _start_of_type(peft_type: str) -> Start:
    if peft_type in OTHER_TYPES:
        return Start(
            "", Rule.PLAIN, f"adapters of type {peft_type} leave the base's weights as they are"
        )
    return Start(
        "",
        Rule.UNKNOWN,
        f"this hub does not know how adapters of type {quoted(peft_type)} are initialized",
        "load it with PEFT, and push the merged model",
    )


def why_not_converted(config: AdapterConfig) -> str | None:
    """Why s (B A - B0 A0) is not all that the training changed, so that an adapter which changed
    its base cannot be converted; None if it can be, given A0 and B0.
    """
    found = [
        why
        for is_set, why in (
            (config.use_dora, "DoRA scales the rows of the weights (use_dora)"),
            (
                config.alora_invocation_tokens is not None,
                "an activated LoRA acts on some tokens alone, the changed base on all"
                " (alora_invocation_tokens)",
            ),
            (config.layer_replication is not None, "it repeats layers (layer_replication)"),
            (config.use_qalora, "QALoRA pools the inputs of A (use_qalora)"),
            (bool(config.target_parameters), "it changes parameters that are no modules"),
            (bool(config.variants), f"it uses {', '.join(config.variants)}"),
        )
        if is_set
    ]
    return found[0] if found else None
