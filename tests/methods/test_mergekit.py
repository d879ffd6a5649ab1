"""Configurations of mergekit mean here what they mean there, or are refused by their key."""

from typing import Any

import pytest

from deltahub.methods.errors import CannotMerge
from deltahub.methods.kinds.merge import MergeArguments
from deltahub.methods.kinds.mergekit import read_config

TIES = """
models:
  - model: lab/base
  - model: lab/code
    parameters:
      density: 0.5
      weight: 0.5
  - model: lab/math
    parameters:
      density: 0.5
      weight: 0.5
merge_method: ties
base_model: lab/base
parameters:
  normalize: true
  int8_mask: true
dtype: float16
"""
HEAD = "base_model: lab/base\nmodels: [{model: lab/code}, {model: lab/math}]\nmerge_method: "
MODELS = {"base": "lab/base", "models": ["lab/code", "lab/math"]}
READ: dict[str, tuple[str, dict[str, Any]]] = {
    "ties": (TIES, {"method": "ties", "density": 0.5, "scale": 1.0}),
    "linear": (HEAD + "linear", {"method": "average"}),
    "emr": (HEAD + "emr", {"method": "emr"}),
    "emr with a rescaler": (
        HEAD + "emr\nparameters: {rescaler: l2}",
        {"method": "emr", "rescaler": "l2"},
    ),
    "task_arithmetic": (
        HEAD + "task_arithmetic\nparameters: {weight: 0.4, lambda: 0.5}",
        {"method": "task-arithmetic", "scale": 0.2},
    ),
    "task_arithmetic, normalized": (
        HEAD + "task_arithmetic\nparameters: {weight: 0.4, normalize: true}",
        {"method": "task-arithmetic", "scale": 0.5},
    ),
}


@pytest.mark.parametrize("name", list(READ))
def test_a_configuration_is_read(name: str) -> None:
    text, expected = READ[name]
    arguments = read_config(text)
    assert arguments == MODELS | expected
    MergeArguments.model_validate(arguments | {"name": "lab/merged"})


REFUSED = {
    "slices": ("merge_method: ties\nbase_model: a/b\nslices: []", "slices"),
    "another method": (HEAD + "dare_ties", "one of linear"),
    "a list of methods": (HEAD + "[ties]", r"merge_method \['ties'\]: one of"),
    "no base": ("merge_method: ties\nmodels: []", "base_model is missing"),
    "no list of models": ("merge_method: ties\nbase_model: a/b\nmodels: a/c", "no list"),
    "other weights": (TIES.replace("weight: 0.5", "weight: 0.7", 1), "weight differs"),
    "a gradient": (TIES.replace("density: 0.5", "density: [0, 1]"), "one number for all layers"),
    "no normalization": (TIES.replace("normalize: true", "normalize: false"), "normalize: false"),
    "a tokenizer": (HEAD + "ties\ntokenizer: {source: union}", "tokenizer"),
    "no YAML": ("merge_method: [", "no YAML"),
    "a text": ("ties", "no mapping"),
    "weights of emr": (HEAD + "emr\nparameters: {weight: 0.4}", "has weight"),
    "a density of emr": (TIES.replace("ties", "emr"), "parameters of lab/code has density, weight"),
    "a rescaler of ties": (HEAD + "ties\nparameters: {rescaler: l2}", "has rescaler"),
    "an unknown parameter": (HEAD + "ties\nparameters: {gamma: 1}", "gamma"),
}


@pytest.mark.parametrize("fault", list(REFUSED))
def test_what_would_come_out_differently_is_refused(fault: str) -> None:
    text, message = REFUSED[fault]
    with pytest.raises(CannotMerge, match=message):
        read_config(text)
