"""Model cards: what the front matter of a README says, as clients and the registry use it."""

from collections.abc import Collection, Mapping
from datetime import date
from typing import Any, Final

import yaml

from deltahub.registry.errors import InvalidName
from deltahub.registry.paths import split_name

CARD: Final = "README.md"
ADAPTER: Final = "adapter_config.json"
MAX_CARD_BYTES: Final = 1 << 20
_FENCE: Final = "---"
# What a model can be of its base, in the words of cards.
RELATIONS: Final = frozenset({"adapter", "finetune", "merge", "quantized"})
_MOST_VALUES: Final = 100_000


class BadCard(Exception):
    """Front matter that is no mapping in YAML; says where it is wrong."""


def front_matter(readme: bytes) -> dict[str, Any]:
    """The YAML between two lines of three dashes at the beginning; {} where there is none.

    Values are as JSON has them. BadCard.
    """
    lines = readme.decode("utf-8", "replace").removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != _FENCE:
        return {}
    end = next((i for i, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is None:
        return {}
    try:
        found = yaml.safe_load("\n".join(lines[1:end]))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadCard(f"the front matter is not YAML: {_problem(error)}"[:300]) from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadCard("the front matter must be a mapping: `key: value` lines")
    left = [_MOST_VALUES]
    try:
        return {str(key): _plain(value, left) for key, value in found.items()}
    except RecursionError as error:  # a list may hold itself
        raise BadCard("the front matter is nested too deeply") from error


def _problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or " ".join(str(error).split())
    # Counted as an editor does: the line of dashes is the first.
    return what if mark is None else f"line {mark.line + 2}, column {mark.column + 1}: {what}"


def _plain(value: Any, left: list[int]) -> Any:
    # YAML may name a list again by an alias: a few lines can stand for any number of values.
    left[0] -= 1
    if left[0] < 0:
        raise BadCard(f"the front matter has more than {_MOST_VALUES} values")
    if isinstance(value, Mapping):
        return {str(key): _plain(one, left) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one, left) for one in value]
    if isinstance(value, date):
        return value.isoformat()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return value
    return str(value)


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
