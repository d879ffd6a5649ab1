"""The fields of model cards: the base model and the tags that they stand for."""

from collections.abc import Mapping
from typing import Any, Final

from deltahub.registry.errors import InvalidName
from deltahub.registry.names import split_name

CARD: Final = "README.md"
ADAPTER: Final = "adapter_config.json"
MAX_CARD_BYTES: Final = 1 << 20
# How a model relates to its base: the values of the card field `base_model_relation`.
RELATIONS: Final = frozenset({"adapter", "finetune", "merge", "quantized"})
# The relation in tags for bases that the hub measured from the weights; cards do not use it.
MEASURED: Final = "measured"


def base_in_card(card: Mapping[str, Any]) -> str | None:
    """Return the first `base_model` of a card; None if the card names none."""
    named = card.get("base_model")
    first = named[0] if isinstance(named, list) and named else named
    if not isinstance(first, str) or not first.strip():
        return None
    return _model_name(first)


def base_in_adapter(config: Mapping[str, Any]) -> str | None:
    """Return the base that an adapter_config.json names; None if that cannot be a model's name.

    Training loops write the place from which they loaded the base, and that may be a folder. The
    folder "out/base" has the form of a name and is returned, although no model has that name.
    """
    named = config.get("base_model_name_or_path")
    if not isinstance(named, str):
        return None
    name = named.removeprefix("https://huggingface.co/")
    try:
        split_name(name)
    except InvalidName:
        return None
    return name


def card_tags(
    card: Mapping[str, Any], renamed: Mapping[str, str], relation_of_files: str | None = None
) -> list[str]:
    """Return the tags of a card, without repeats: its own, then those made from its fields.

    renamed: bases that the card names by an old name -> their name now.
    relation_of_files: what the files tell of the relation to the base, if the card does not: an
    adapter has an adapter_config.json, a quantized model a .gguf file.
    """
    tags = [str(tag) for tag in _as_list(card.get("tags"))]
    for field, prefix in (("language", ""), ("license", "license:"), ("datasets", "dataset:")):
        tags += [f"{prefix}{value}" for value in _as_list(card.get(field))]
    named = [str(base) for base in _as_list(card.get("base_model"))]
    bases = [renamed.get(_model_name(base), base) for base in named]
    tags += [f"base_model:{base}" for base in bases]
    relation = card.get("base_model_relation")
    if not isinstance(relation, str):
        relation = relation_of_files or ("merge" if len(bases) > 1 else "finetune")
    if bases:
        tags += [f"base_model:{relation}:{base}" for base in bases]
    return list(dict.fromkeys(tags))


def _model_name(text: str) -> str:
    return text.strip().removeprefix("https://huggingface.co/").strip("/")


def _as_list(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    return value if isinstance(value, list) else [value]
