"""The fields of model cards: the base model and the tags that they stand for."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from deltahub.registry.errors import InvalidName
from deltahub.registry.names import split_name

CARD: Final = "README.md"
ADAPTER: Final = "adapter_config.json"
MAX_CARD_BYTES: Final = 1 << 20
# The relation of a model that takes the place of its base, whose adapters may follow.
UPGRADE: Final = "upgrade"
# How a model relates to its base: the values of the card field `base_model_relation`.
RELATIONS: Final = frozenset({"adapter", "finetune", "merge", "quantized", "export", UPGRADE})


def base_in_card(card: Mapping[str, Any]) -> str | None:
    """Return the first `base_model` of a card; None if the card names none."""
    named = card.get("base_model")
    first = named[0] if isinstance(named, list) and named else named
    if not isinstance(first, str) or not first.strip():
        return None
    return model_name(first)


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


def newer_in_card(card: Mapping[str, Any]) -> str | None:
    """Return the model that a card names as its `new_version`; None if it names none."""
    named = card.get("new_version")
    return model_name(named) if isinstance(named, str) and named.strip() else None


def card_tags(card: Mapping[str, Any]) -> list[str]:
    """Return the tags of a card except those of its bases: its own, then those of its fields."""
    tags = [str(tag) for tag in _as_list(card.get("tags"))]
    for field, prefix in (("language", ""), ("license", "license:"), ("datasets", "dataset:")):
        tags += [f"{prefix}{value}" for value in _as_list(card.get(field))]
    return tags


def bases_in_card(card: Mapping[str, Any]) -> list[str]:
    """Return every base that a card names, as it names it."""
    return [str(base) for base in _as_list(card.get("base_model"))]


def relation_in_card(card: Mapping[str, Any], relation_of_files: str | None) -> str:
    """Return how a model relates to its bases.

    relation_of_files: what the files tell of it, if the card does not: an adapter has an
    adapter_config.json, a quantized model a .gguf file, an export model.neuzip.safetensors.
    """
    relation = card.get("base_model_relation")
    if isinstance(relation, str):
        return relation
    return relation_of_files or ("merge" if len(bases_in_card(card)) > 1 else "finetune")


def base_tags(bases: Sequence[str], relation: str) -> list[str]:
    """Return the tags of a model's bases."""
    tags = [f"base_model:{base}" for base in bases]
    return tags + [f"base_model:{relation}:{base}" for base in bases]


def model_name(text: str) -> str:
    """Return the name of a model that a card names, perhaps by its address."""
    return text.strip().removeprefix("https://huggingface.co/").strip("/")


def _as_list(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    return value if isinstance(value, list) else [value]
