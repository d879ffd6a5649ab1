"""Reads a configuration of mergekit (0.1.5) as the arguments of a merge."""

from collections.abc import Mapping
from typing import Any, Final

from deltahub.methods.errors import CannotMerge

# mergekit's methods that this hub has, and what they are called here.
METHODS: Final = {
    "linear": "average",
    "task_arithmetic": "task-arithmetic",
    "ties": "ties",
    "emr": "emr",
}
# What an emr merge may have, which mergekit does not know.
_EMR_PARAMETERS: Final = {"rescaler", "int8_mask"}
_KEYS: Final = {"merge_method", "base_model", "models", "parameters", "dtype", "out_dtype"}
_PARAMETERS: Final = {"weight", "density", "lambda", "normalize", "int8_mask"}
MAX_BYTES: Final = 1 << 20


def read_config(text: str, base: str | None = None) -> dict[str, Any]:
    """The arguments `method`, `base`, `models` and those of the method, from YAML text.

    base: counts where the text names none. Names of models are those of this hub. CannotMerge for
    what would come out differently here: the message names the key. ModuleNotFoundError without
    PyYAML.
    """
    import yaml

    if len(text) > MAX_BYTES:
        raise CannotMerge(f"a configuration of {len(text)} characters; at most {MAX_BYTES}")
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise CannotMerge(f"the configuration is no YAML: {exc}") from exc
    if not isinstance(config, dict):
        raise CannotMerge("the configuration is no mapping with merge_method and models")
    _refuse_others(config, _KEYS, "the configuration")
    method = config.get("merge_method")
    if not isinstance(method, str) or method not in METHODS:
        raise CannotMerge(f"merge_method {method!r}: one of {', '.join(METHODS)}")
    base = config.get("base_model", base)
    if not isinstance(base, str):
        raise CannotMerge(
            "base_model is missing: name the model that all were fine-tuned from, there or by"
            " --base"
        )
    models, weights, densities = _models(config, base)
    known = _EMR_PARAMETERS if method == "emr" else _PARAMETERS
    shared = _parameters(config, "the configuration", known)
    arguments: dict[str, Any] = {"method": METHODS[method], "base": base, "models": models}
    weight = _one(weights, shared.get("weight"), "weight")
    density = _one(densities, shared.get("density"), "density")
    factor = _number(shared.get("lambda", 1), "lambda")
    if method == "linear" and shared.get("normalize") is False:
        raise CannotMerge("normalize: false; linear divides by the sum of the weights here")
    if method == "task_arithmetic":
        # mergekit divides by the sum of the weights only where `normalize` is set.
        n = len(models) if shared.get("normalize") else 1
        each = 1 / n if n > 1 else (1.0 if weight is None else weight)
        arguments["scale"] = factor * each
    elif method == "ties":
        if shared.get("normalize") is False:
            raise CannotMerge(
                "normalize: false; ties divides by the number of agreeing models here"
            )
        arguments |= {"scale": factor, "density": 1.0 if density is None else density}
    elif method == "emr" and "rescaler" in shared:
        arguments["rescaler"] = shared["rescaler"]
    return arguments


def _models(
    config: Mapping[str, Any], base: str
) -> tuple[list[str], list[float | None], list[float | None]]:
    """(names without the base, their weights, their densities)"""
    given = config.get("models")
    if not isinstance(given, list):
        raise CannotMerge("models is no list; configurations with slices or modules are not read")
    names, weights, densities = [], [], []
    is_emr = config["merge_method"] == "emr"
    for entry in given:
        if not isinstance(entry, dict) or not isinstance(entry.get("model"), str):
            raise CannotMerge(f"{entry!r} in models has no `model`")
        _refuse_others(entry, {"model", "parameters"}, entry["model"])
        if entry["model"] == base:
            if config["merge_method"] == "linear":
                raise CannotMerge("base_model is among the models; linear merges fine-tunes here")
            continue
        own = _parameters(entry, entry["model"], set() if is_emr else _PARAMETERS)
        names.append(entry["model"])
        weights.append(own.get("weight"))
        densities.append(own.get("density"))
    return names, weights, densities


def _parameters(config: Mapping[str, Any], where: str, known: set[str]) -> Mapping[str, Any]:
    found = config.get("parameters") or {}
    if not isinstance(found, dict):
        raise CannotMerge(f"parameters of {where} is no mapping")
    _refuse_others(found, known, f"parameters of {where}")
    return found


def _refuse_others(found: Mapping[str, Any], known: set[str], where: str) -> None:
    others = sorted(str(key) for key in found if key not in known)
    if others:
        raise CannotMerge(f"{where} has {', '.join(others)}, which this hub does not do")


def _one(values: list[float | None], shared: Any, name: str) -> float | None:
    """The one value that all models have; a model without one has the shared one."""
    found = {None if each is None else _number(each, name)
             for each in (shared if value is None else value for value in values)}  # fmt: skip
    if len(found) > 1:
        raise CannotMerge(f"{name} differs from model to model; here all have the same")
    return found.pop() if found else None


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CannotMerge(f"{name} is {value!r}; only one number for all layers is read")
    return float(value)
