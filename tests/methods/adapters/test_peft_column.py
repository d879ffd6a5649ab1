"""What the report says of transformers with peft is what the installed PEFT does."""

import pytest

from deltahub.methods.adapters.inspection.fit import TensorShape
from deltahub.methods.adapters.inspection.report import BaseAtHand, inspect_adapter
from support.models.saved_adapters import (
    OPTIONS,
    base_tensors,
    logits_of,
    new_base,
    reloaded_logits,
    saved,
)

# float32, of outputs of about 5.
SAME = 1e-4
OTHER = 0.05


@pytest.fixture(scope="module")
def llama() -> dict[str, TensorShape]:
    return base_tensors()


@pytest.mark.parametrize("kind", OPTIONS)
def test_peft_gives_the_logits_of_the_training_where_the_report_says_loads_and_only_there(
    kind: str, llama: dict[str, TensorShape]
) -> None:
    adapter = saved(kind)
    base = BaseAtHand("org/base", llama)
    report = inspect_adapter(adapter.config, adapter.tensors, adapter.files, base, kind)
    (verdict,) = (each for each in report.verdicts if each.engine == "transformers with peft")
    assert float((adapter.logits - logits_of(new_base())).abs().max()) > OTHER
    try:
        difference = float(
            (reloaded_logits(adapter.files, new_base()) - adapter.logits).abs().max()
        )
    except (ValueError, RuntimeError):
        difference = float("inf")
    if verdict.verdict == "loads":
        assert difference < SAME
    else:
        assert verdict.verdict == "does not load"
        assert difference > OTHER
