"""The report on an adapter: its state, the way out, and what its folder says."""

import json
import subprocess
import sys
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltahub.methods.adapters.inspection.fit import TensorShape
from deltahub.methods.adapters.inspection.report import AdapterReport, BaseAtHand, inspect_adapter
from deltahub.methods.errors import BadAdapter
from support.models.saved_adapters import base_tensors, saved

COMMIT = "0123456789abcdef" * 4
WEIGHTS = ["adapter_config.json", "adapter_model.safetensors", "README.md"]


@pytest.fixture(scope="module")
def base() -> BaseAtHand:
    return BaseAtHand("org/base", base_tensors(), COMMIT)


def report_of(
    kind: str, base: BaseAtHand | None, files: Collection[str] = WEIGHTS, **changes: Any
) -> AdapterReport:
    config = {**json.loads(saved(kind).config), **changes}
    data = json.dumps(config).encode()
    return inspect_adapter(data, saved(kind).tensors, files, base, "org/adapter")


def test_a_plain_adapter(base: BaseAtHand) -> None:
    report = report_of("true", base)
    assert (report.state, report.rule, report.way_out) == ("plain", "plain", "")
    assert (report.ranks, report.scales, report.n_modules) == ([4], [2.0], 4)
    assert report.base is not None
    assert (report.base.name, report.base.commit, report.base.is_at_hand) == (
        "org/base", COMMIT, True,
    )  # fmt: skip
    assert report.sentences() == [
        "org/adapter: LORA, 4 modules, rank 4, init_lora_weights 'true': plain",
        f"base: org/base@{COMMIT[:12]}",
        "transformers with peft: loads",
        "vLLM: loads",
        "SGLang: loads (pass --max-lora-rank 4 if the adapter is loaded into a running server whose"
        " first adapters have lower ranks)",
        "llama.cpp: loads after conversion (llama.cpp reads GGUF: run convert_lora_to_gguf.py on"
        " the adapter)",
    ]
    assert AdapterReport.model_validate_json(report.model_dump_json()) == report


def test_what_changed_its_base_is_converted_from_the_base_or_quarantined(base: BaseAtHand) -> None:
    for kind in ("pissa", "olora"):
        assert report_of(kind, base).state == "convertible"
        alone = report_of(kind, None, base_model_name_or_path="org/base")
        assert (alone.state, alone.base and alone.base.commit) == ("quarantined", None)
        assert "push the base" in alone.way_out
        moved = BaseAtHand("org/base", base.tensors, COMMIT, differs=True)
        assert report_of(kind, moved).state == "quarantined"
    assert report_of("true", None).base is None


@pytest.mark.parametrize("kind", ["pissa_niter_4", "lora_ga", "corda"])
def test_what_needs_its_initial_factors_is_convertible_with_them(
    kind: str, base: BaseAtHand
) -> None:
    report = report_of(kind, base)
    assert (report.state, report.rule, report.initial_factors) == (
        "quarantined", "needs_init", None,
    )  # fmt: skip
    assert "_init" in report.way_out
    assert f"way out: {report.way_out}" in report.sentences()
    with_init = report_of(kind, base, [*WEIGHTS, "pissa_init/adapter_model.safetensors"])
    assert (with_init.state, with_init.initial_factors) == ("convertible", "pissa_init")
    with_kit = report_of(kind, base, deltahub_kit="org/kit@0123abc")
    assert (with_kit.state, with_kit.initial_factors) == ("convertible", "org/kit@0123abc")
    for path in ("pissa_init/adapter_model.bin", "a/pissa_init/adapter_model.safetensors"):
        assert report_of(kind, base, [*WEIGHTS, path]).state == "quarantined"


def test_dora_on_a_changed_base_is_not_converted(base: BaseAtHand) -> None:
    report = report_of("pissa with dora", base)
    assert report.state == "quarantined"
    assert "use_dora" in report.way_out


@pytest.mark.parametrize("init", ["loftq", "milora"])
def test_what_nobody_can_undo_is_quarantined_with_the_way_out(init: str, base: BaseAtHand) -> None:
    report = report_of("true", base, init_lora_weights=init)
    assert report.state == "quarantined"
    assert report.way_out


def test_initial_factors_beside_a_plain_adapter_are_a_note(base: BaseAtHand) -> None:
    report = report_of("true", base, [*WEIGHTS, "pissa_init/adapter_model.safetensors"])
    assert report.state == "plain"
    assert "wrong if the field was edited by hand" in report.notes[0]


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        (["adapter_config.json", "adapter_model.bin"], "a pickle, which the hub never opens"),
        (["adapter_config.json"], "has no adapter_model.safetensors"),
        ([*WEIGHTS, "my_lora.safetensors"], "weights of more than one adapter"),
    ],
)
def test_a_folder_without_one_whole_adapter_is_broken(
    files: list[str], fault: str, base: BaseAtHand
) -> None:
    tensors = saved("true").tensors if "adapter_model.safetensors" in files else {}
    report = inspect_adapter(saved("true").config, tensors, files, base, "org/adapter")
    assert report.state == "broken"
    assert len(report.faults) == 1
    assert fault in report.faults[0]
    assert {verdict.verdict for verdict in report.verdicts} == {"does not load"}


def test_adapters_in_folders_of_their_own_are_no_fault(base: BaseAtHand) -> None:
    files = [*WEIGHTS, "checkpoint-5/adapter_model.safetensors", "model.safetensors"]
    assert report_of("true", base, files).faults == []


def test_an_adapter_for_another_base_is_broken() -> None:
    other = BaseAtHand("org/other", base_tensors(hidden_size=32), COMMIT)
    report = report_of("true", other)
    assert report.state == "broken"
    assert "that do not fit [32, 32] in org/other" in report.faults[0]


def test_an_adapter_that_is_no_lora_is_not_looked_into(base: BaseAtHand) -> None:
    report = inspect_adapter(
        b'{"peft_type": "IA3"}', {"x": TensorShape("F32", (1,))}, WEIGHTS, base, "org/adapter"
    )
    assert (report.state, report.ranks, report.n_modules) == ("plain", [], 0)
    assert report.notes == ["the hub does not look into adapters of type IA3"]


@given(
    st.dictionaries(
        st.sampled_from(["r", "init_lora_weights", "rank_pattern", "base_model_name_or_path"]),
        st.none() | st.booleans() | st.integers() | st.text() | st.just({"(": 1}),
    ),
    st.lists(st.text(max_size=40) | st.sampled_from(WEIGHTS), unique=True),
)
def test_whatever_is_pushed_gives_a_report_that_prints_or_is_refused(
    changes: dict[str, Any], files: list[str]
) -> None:
    try:
        report = report_of("true", None, files, **changes)
        sentences = report.sentences()
        assert report.model_dump_json()
    except BadAdapter as error:
        sentences = [str(error)]
    assert all(sentence.isprintable() for sentence in sentences)


def test_to_inspect_an_adapter_needs_no_torch() -> None:
    code = (
        "import sys, deltahub.methods.adapters.inspection.report; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
