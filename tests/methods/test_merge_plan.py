"""Which tensors of fine-tunes are merged, and which models are refused."""

import pytest

from deltahub.codecs.frames.base_choice import TensorInfo
from deltahub.methods.errors import CannotMerge
from deltahub.methods.merging.plan import plan_merge

EXCLUDE = (r"(^|\.)(classifier|score|lm_head_task|head)\.",)
SHAPES = {"layer.weight": (64, 64), "norm.bias": (64,), "classifier.weight": (2, 64)}


def model(dtype: str = "BF16", **shapes: tuple[int, ...]) -> dict[str, TensorInfo]:
    named = SHAPES | {name.replace("__", "."): shape for name, shape in shapes.items()}
    return {name: TensorInfo(name, dtype, shape) for name, shape in named.items()}


def test_heads_stay_with_their_task() -> None:
    plan = plan_merge(model(), {"a": model(), "b": model(classifier__weight=(9, 64))}, EXCLUDE)
    assert plan.merged == ("layer.weight", "norm.bias")
    assert plan.kept["b"] == {"classifier.weight": "its name is excluded"}


def test_a_tensor_that_a_task_reshaped_or_added_is_kept() -> None:
    plan = plan_merge(model(), {"a": model(norm__bias=(65,), extra__weight=(3,))}, EXCLUDE)
    assert plan.merged == ("layer.weight",)
    assert plan.kept["a"]["norm.bias"] == "a has shape [65], the base [64]"
    assert plan.kept["a"]["extra.weight"] == "the base has no such tensor"


def test_models_that_share_too_little_are_refused_with_the_largest_reason() -> None:
    with pytest.raises(CannotMerge, match=r"layer\.weight: a has shape \[32, 64\]"):
        plan_merge(model(), {"a": model(layer__weight=(32, 64))}, EXCLUDE)
    with pytest.raises(CannotMerge, match="its dtype is I8"):
        plan_merge(model("I8"), {"a": model("I8")}, EXCLUDE)


def test_a_wrong_regular_expression_is_named() -> None:
    with pytest.raises(CannotMerge, match=r"'\(' in exclude"):
        plan_merge(model(), {"a": model()}, ("(",))
