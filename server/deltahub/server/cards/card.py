"""Model cards: what their fields mean to clients and the registry."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from deltahub.registry.errors import InvalidName
from deltahub.registry.names import split_name

CARD: Final = "README.md"
ADAPTER: Final = "adapter_config.json"
MAX_CARD_BYTES: Final = 1 << 20
# What a model can be of its base, in the words of cards.
RELATIONS: Final = frozenset({"adapter", "finetune", "merge", "quantized"})
# And what it is by its weights, which no card says.
MEASURED: Final = "measured"


def named_base(card: Mapping[str, Any]) -> str | None:
    """The `base_model` that a card names, the first of several; None where it names none."""
    named = card.get("base_model")
    first = named[0] if isinstance(named, list) and named else named
    if not isinstance(first, str) or not first.strip():
        return None
    return _model_name(first)


def base_in_adapter(config: Mapping[str, Any]) -> str | None:
    """The base that an adapter_config.json names; None for what can be no model's name.

    Training loops write what they have loaded from, and that may be a folder: "out/base" has the
    form of a name, and is one that nothing has.
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


def tags_of(
    card: Mapping[str, Any], renamed: Mapping[str, str], files: Collection[str] = ()
) -> list[str]:
    """What a card is found by: its own tags, then those that its fields stand for.

    renamed: how bases that it names are called now, where that is another name.
    files: the paths beside it, by which a model is known for an adapter of its base.
    """
    tags = [str(tag) for tag in _listed(card.get("tags"))]
    for field, prefix in (("language", ""), ("license", "license:"), ("datasets", "dataset:")):
        tags += [f"{prefix}{value}" for value in _listed(card.get(field))]
    named = [str(base) for base in _listed(card.get("base_model"))]
    bases = [renamed.get(_model_name(base), base) for base in named]
    tags += [f"base_model:{base}" for base in bases]
    relation = card.get("base_model_relation")
    if not isinstance(relation, str):
        relation = _relation(len(bases), files)
    if bases:
        tags += [f"base_model:{relation}:{base}" for base in bases]
    return list(dict.fromkeys(tags))


def _relation(n_bases: int, files: Collection[str]) -> str:
    if ADAPTER in files:
        return "adapter"
    if any(path.endswith(".gguf") for path in files):
        return "quantized"
    return "merge" if n_bases > 1 else "finetune"


def _model_name(text: str) -> str:
    return text.strip().removeprefix("https://huggingface.co/").strip("/")


def _listed(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    return value if isinstance(value, list) else [value]
