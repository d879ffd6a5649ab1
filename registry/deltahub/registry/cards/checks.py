"""What is wrong in the fields of a model card: what readers of cards could not use."""

import re
from collections.abc import Mapping
from typing import Any, Final

from deltahub.registry.cards.card import RELATIONS, model_name
from deltahub.registry.cards.licenses import LICENSES
from deltahub.registry.errors import InvalidName
from deltahub.registry.names import quoted, split_name

_TEXTS: Final = ("library_name", "pipeline_tag", "license_name", "license_link", "thumbnail")
_TEXT_OR_LIST: Final = ("license", "language", "datasets", "base_model", "tags", "metrics")
_MOST: Final = 20  # problems that are told
_RESULT: Final = "model-index"
# A code of two or three letters, with a region or a script: pt-BR, zh-Hant.
_LANGUAGE: Final = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
_NO_LANGUAGES: Final = ("code", "multilingual")


def faults(card: Mapping[str, Any]) -> list[str]:
    """Return sentences about fields that have the wrong form; none if all are right."""
    found = [f'"{key}" must be a text' for key in _TEXTS if not _is_text(card.get(key, ""))]
    for key in _TEXT_OR_LIST:
        value = card.get(key, "")
        if value is not None and not _is_text(value) and not _are_texts(value):
            found.append(f'"{key}" must be a text or a list of texts')
    found += _faults_of_bases(card)
    if card.get(_RESULT) is not None:
        found += _faults_of_results(card[_RESULT])
    return found[:_MOST]


def warnings(card: Mapping[str, Any]) -> list[str]:
    """Return sentences about what a card lacks, or what nobody may understand."""
    if not card:
        return ["empty or missing yaml metadata in repo card: begin it with `---`, as"
                " `license: mit`, and `---`"]  # fmt: skip
    found = []
    if card.get("license") == "other" and not card.get("license_name"):
        found.append('"license" is other: name it with "license_name" and "license_link"')
    for named in _texts(card.get("license")):
        if named not in LICENSES:
            found.append(
                f'"license" with value {quoted(named)} is not an identifier that Hugging Face'
                ' lists: is it misspelt? Else write other, and "license_name"'
            )
    for language in _texts(card.get("language")):
        if not _LANGUAGE.fullmatch(language) and language not in _NO_LANGUAGES:
            found.append(
                f'"language" with value {quoted(language)} is not a code of ISO 639, such as en'
            )
    return found[:_MOST]


def _faults_of_bases(card: Mapping[str, Any]) -> list[str]:
    found = []
    named = card.get("base_model")
    for base in named if isinstance(named, list) else [named]:
        if not isinstance(base, str) or not base:
            continue
        name = model_name(base)
        try:
            # Some models of other hubs have no namespace.
            split_name(name if "/" in name else f"any/{name}")
        except InvalidName:
            found.append(
                f'"base_model" with value {quoted(base)} is not valid: write NAMESPACE/NAME'
            )
    relation = card.get("base_model_relation")
    if relation is not None and relation not in RELATIONS:
        found.append(f'"base_model_relation" must be one of {", ".join(sorted(RELATIONS))}')
    return found


def _faults_of_results(index: Any) -> list[str]:
    if not isinstance(index, list):
        return [f'"{_RESULT}" must be a list of models']
    found = []
    for i, model in enumerate(index):
        at = f"{_RESULT}[{i}]"
        if not isinstance(model, Mapping) or not _is_name(model.get("name")):
            found.append(f'"{at}.name" must be a text')
            continue
        results = model.get("results")
        if not isinstance(results, list):
            found.append(f'"{at}.results" must be a list')
            continue
        for j, result in enumerate(results):
            found += _faults_of_result(f"{at}.results[{j}]", result)
    return found


def _faults_of_result(at: str, result: Any) -> list[str]:
    if not isinstance(result, Mapping):
        return [f'"{at}" must have a task, a dataset and metrics']
    found = []
    for place, fields in (("task", ("type",)), ("dataset", ("type", "name"))):
        part = result.get(place)
        for field in fields:
            if not isinstance(part, Mapping) or not _is_name(part.get(field)):
                found.append(f'"{at}.{place}.{field}" must be a text')
    metrics = result.get("metrics")
    if not isinstance(metrics, list):
        return [*found, f'"{at}.metrics" must be a list']
    for number, metric in enumerate(metrics):
        where = f"{at}.metrics[{number}]"
        if not isinstance(metric, Mapping) or not _is_name(metric.get("type")):
            found.append(f'"{where}.type" must be a text')
        elif "value" not in metric:
            found.append(f'"{where}.value" is missing')
    return found


def _texts(value: Any) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if _is_name(each)]


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: Any) -> bool:
    # YAML reads some codes of languages and versions as other kinds: no, 2.0.
    return isinstance(value, list) and all(isinstance(e, str | bool | int | float) for e in value)
