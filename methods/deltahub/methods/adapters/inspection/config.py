"""An adapter_config.json, as far as it says what the weights beside it mean."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from deltahub.methods.adapters.inspection.fields import Fields
from deltahub.methods.adapters.names import quoted
from deltahub.methods.errors import BadAdapter

# EVA writes a rank for each module of a model, which makes some 100 kB.
MAX_CONFIG_BYTES: Final = 4 << 20
_KIT: Final = r"[^/@\s]{1,100}/[^/@\s]{1,100}@[0-9A-Za-z._-]{1,100}"
# Options of PEFT that change what A and B do, or add parts beside them. Each is an object or null.
_VARIANTS: Final = (
    "kasa_config",
    "velora_config",
    "use_bdlora",
    "arrow_config",
    "monteclora_config",
)


@dataclass(frozen=True)
class AdapterConfig:
    """What an adapter says of itself. Of an adapter whose peft_type is not LORA, everything but
    peft_type, the base and raw is PEFT's default: the fields of other types mean other things.

    r, lora_alpha: of modules that no pattern matches. rank_pattern, alpha_pattern: regular
    expression for the end of a module's name -> value; the first that matches counts.
    init: init_lora_weights as a text in lower case: "true", "false", "gaussian", "pissa", ...
    variants: further options that are set, by name. deltahub_kit: `org/kit@commit`, the init kit
    that the adapter started from. raw: the whole file.
    """

    peft_type: str
    base_model_name_or_path: str | None = None
    revision: str | None = None
    r: int = 8
    lora_alpha: float = 8.0
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    use_rslora: bool = False
    use_dora: bool = False
    target_modules: str | tuple[str, ...] | None = None
    exclude_modules: str | tuple[str, ...] | None = None
    modules_to_save: tuple[str, ...] = ()
    bias: str = "none"
    fan_in_fan_out: bool = False
    init: str = "true"
    layers_to_transform: tuple[int, ...] | None = None
    target_parameters: tuple[str, ...] = ()
    trainable_token_indices: Mapping[str, tuple[int, ...]] | None = None
    alora_invocation_tokens: tuple[int, ...] | None = None
    layer_replication: tuple[tuple[int, int], ...] | None = None
    lora_bias: bool = False
    use_qalora: bool = False
    variants: tuple[str, ...] = ()
    deltahub_kit: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_lora(self) -> bool:
        """peft_type is LORA; types such as ADALORA are not."""
        return self.peft_type == "LORA"


def parse_adapter_config(data: bytes, title: str) -> AdapterConfig:
    """What adapter_config.json says. BadAdapter, which names the adapter by its title, for a file
    that is no JSON object, or whose values no adapter can have.
    """
    raw = _json_object(data, title)
    fields = Fields(raw, title)
    peft_type = fields.text("peft_type", r"\w{1,40}")
    if peft_type is None:
        raise fields.wrong("peft_type", "the type of the adapter, such as LORA")
    config = AdapterConfig(
        peft_type=peft_type,
        base_model_name_or_path=fields.text("base_model_name_or_path"),
        revision=fields.text("revision"),
        deltahub_kit=fields.text("deltahub_kit", _KIT),
        raw=MappingProxyType(raw),
    )
    return _lora(config, fields) if config.is_lora else config


def _lora(config: AdapterConfig, fields: Fields) -> AdapterConfig:
    return AdapterConfig(
        peft_type=config.peft_type,
        base_model_name_or_path=config.base_model_name_or_path,
        revision=config.revision,
        r=fields.rank("r", 8),
        lora_alpha=fields.alpha("lora_alpha", 8.0),
        rank_pattern=fields.ranks("rank_pattern"),
        alpha_pattern=fields.alphas("alpha_pattern"),
        use_rslora=fields.flag("use_rslora"),
        use_dora=fields.flag("use_dora"),
        target_modules=fields.text_or_texts("target_modules"),
        exclude_modules=fields.text_or_texts("exclude_modules"),
        modules_to_save=fields.texts("modules_to_save") or (),
        bias=fields.text("bias", "none|all|lora_only") or "none",
        fan_in_fan_out=fields.flag("fan_in_fan_out"),
        init=_init(fields, config.raw),
        layers_to_transform=fields.numbers("layers_to_transform", one_is_enough=True),
        target_parameters=fields.texts("target_parameters") or (),
        trainable_token_indices=fields.token_rows("trainable_token_indices"),
        alora_invocation_tokens=fields.numbers("alora_invocation_tokens"),
        layer_replication=fields.ranges("layer_replication"),
        lora_bias=fields.flag("lora_bias"),
        use_qalora=fields.flag("use_qalora"),
        variants=tuple(name for name in _VARIANTS if config.raw.get(name)),
        deltahub_kit=config.deltahub_kit,
        raw=config.raw,
    )


def _init(fields: Fields, raw: Mapping[str, Any]) -> str:
    value = raw.get("init_lora_weights", True)
    # PEFT leaves the factors as they are made for null, as for false.
    if value is None or isinstance(value, bool):
        return str(bool(value)).lower()
    if not isinstance(value, str) or len(value) > 100:
        raise fields.wrong("init_lora_weights", "true, false or the name of an initialization")
    return value.strip().lower()


def _json_object(data: bytes, title: str) -> dict[str, Any]:
    if len(data) > MAX_CONFIG_BYTES:
        raise BadAdapter(
            f"adapter_config.json of {title} has {len(data):,} bytes; at most"
            f" {MAX_CONFIG_BYTES:,} are read: save the adapter again with PEFT"
        )
    try:
        value = json.loads(data)
        # A lone surrogate could be neither printed nor sent.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as exc:
        why = "is nested too deeply" if isinstance(exc, RecursionError) else f"is no JSON: {exc}"
        raise BadAdapter(
            f"adapter_config.json of {title} {why}: save the adapter again with PEFT"
        ) from exc
    if not isinstance(value, dict):
        raise BadAdapter(
            f"adapter_config.json of {title} is {quoted(value)}, which is no JSON object: save the"
            " adapter again with PEFT"
        )
    return value
