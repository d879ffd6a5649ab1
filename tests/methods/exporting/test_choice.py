"""Which weights an export compresses, and at how many bits."""

from typing import Any

import pytest
from pydantic import ValidationError

from deltahub.codecs.dtypes import DType
from deltahub.codecs.exports.coding import AnyCoding, Coding
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.methods.errors import CannotExport
from deltahub.methods.kinds.export_neuzip import ExportNeuzipArguments
from deltahub.methods.kinds.weights.choice import check_number, choose, coding_with

SHAPES = {
    "model.embed_tokens.weight": ("BF16", (1000, 64)),
    "model.layers.0.q_proj.weight": ("BF16", (64, 64)),
    "model.layers.0.down_proj.weight": ("F16", (64, 128)),
    "model.layers.0.up_proj.weight": ("F32", (128, 64)),
    "model.layers.0.wide.weight": ("F64", (128, 64)),
    "model.layers.0.eighth.weight": ("F8_E4M3", (128, 64)),
    "model.layers.0.table": ("I64", (128, 64)),
    "model.layers.0.norm.weight": ("BF16", (8192,)),
    "model.layers.0.small.weight": ("BF16", (63, 65)),
    "lm_head.weight": ("BF16", (1000, 64)),
}


def given(**options: Any) -> ExportNeuzipArguments:
    return ExportNeuzipArguments.model_validate({"model": "a/b", "name": "a/c", **options})


def chosen(**options: Any) -> dict[str, AnyCoding]:
    """Coding by the last two words of a name."""
    found = choose(SHAPES, given(**options), "a/b").coded
    return {name.removeprefix("model.layers.0."): how for name, how in found.items()}


def test_large_matrices_of_floats_are_compressed_and_all_else_is_plain() -> None:
    found = choose(SHAPES, given(), "a/b")
    assert set(found.plain) == {
        "model.layers.0.table", "model.layers.0.norm.weight", "model.layers.0.small.weight",
    }  # fmt: skip
    assert {*found.coded, *found.plain} == {*SHAPES}
    assert found.open == ()


def test_seven_bits_are_all_of_bfloat16_and_fewer_than_others_have() -> None:
    found = chosen()
    assert found["q_proj.weight"].is_lossless
    assert (found["down_proj.weight"].bits, found["up_proj.weight"].bits) == (7, 7)
    assert all(each.is_lossless for each in chosen(lossless=True).values())


def test_what_every_token_passes_through_is_kept_unless_told_otherwise() -> None:
    rounded = {name for name, how in chosen(bits=1).items() if not how.is_lossless}
    assert rounded == {"q_proj.weight", "down_proj.weight", "up_proj.weight"}
    rounded = {name for name, how in chosen(bits=1, keep=["none"]).items() if not how.is_lossless}
    assert {"lm_head.weight", "model.embed_tokens.weight"} < rounded
    rounded = {name for name, how in chosen(bits=1, keep=["*_proj.*"]).items() if how.bits == 1}
    assert rounded == {"lm_head.weight", "model.embed_tokens.weight"}


def test_dtypes_that_are_not_rounded_keep_all_bits() -> None:
    found = chosen(bits=0, keep=["none"])
    assert found["wide.weight"].is_lossless
    assert found["eighth.weight"].is_lossless


def test_levels_and_blocks_are_those_that_were_asked_for() -> None:
    found = chosen(bits=5, also=[1, 3], block=512)
    assert found["q_proj.weight"] == Coding(DType.BF16, 5, (1, 3, 5), 512)
    assert found["lm_head.weight"] == Coding(DType.BF16, 7, (7,), 0)
    assert coding_with(DType.BF16, 7, given(bits=5, block=512)).block == 0


def test_a_budget_is_for_the_weights_that_may_be_rounded() -> None:
    found = choose(SHAPES, given(bits="auto", budget=5), "a/b")
    assert {each.rpartition(".layers.0.")[2] for each in found.open} == {
        "q_proj.weight", "down_proj.weight", "up_proj.weight",
    }  # fmt: skip


def test_what_cannot_be_exported_is_named() -> None:
    with pytest.raises(CannotExport, match=r"keep: a/b has no tensor \*\.o_proj\.weight"):
        choose(SHAPES, given(keep=["*.q_proj.weight", "*.o_proj.weight"]), "a/b")
    with pytest.raises(CannotExport, match="no weight that may be rounded"):
        choose(SHAPES, given(bits="auto", budget=5, keep=["*"]), "a/b")
    bf16 = {name: each for name, each in SHAPES.items() if each[0] == "BF16"}
    with pytest.raises(CannotExport, match="also 7: no weight of a/b"):
        choose(bf16, given(lossless=True, also=[3, 7]), "a/b")
    assert choose(SHAPES, given(lossless=True, also=[3, 7]), "a/b").coded
    with pytest.raises(CannotExport, match="block 512: no weight of a/b is rounded at 7"):
        choose(bf16, given(block=512), "a/b")
    assert choose(SHAPES, given(block=512), "a/b").coded
    with pytest.raises(CannotExport, match="a/b has no safetensors file"):
        choose({}, given(), "a/b")
    with pytest.raises(CannotExport, match="a/b has no matrix of floats with 4096 elements"):
        choose({"table": ("I32", (128, 128)), "norm": ("F32", (9999,))}, given(), "a/b")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"block": 100}, "block 100: a power of two"),
        ({"block": 4}, "block 4: a power of two"),
        ({"bits": "auto"}, "belong together"),
        ({"budget": 6}, "belong together"),
        ({"lossless": True, "bits": 3}, "leave bits out"),
        ({"lossless": True, "block": 8}, "leave block out"),
        ({"bits": 4}, "bits"),
        ({"also": [8]}, "also"),
        ({"also": [3, 7]}, "also 7: not fewer than the 7 mantissa bits"),
        ({"bits": "auto", "budget": 5, "also": [7]}, "the 7 mantissa bits that are kept at most"),
        ({"text": " the dog  "}, "7 letters are too few for a perplexity"),
    ],
)
def test_arguments_that_contradict_each_other_are_named(
    options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ValidationError, match=fault):
        given(**options)


def test_entquant_makes_integers_of_what_may_be_rounded() -> None:
    found = chosen(method="entquant", bits=3)
    integers = {name for name, how in found.items() if isinstance(how, IntegerCoding)}
    assert integers == {"q_proj.weight", "down_proj.weight", "up_proj.weight"}
    assert found["down_proj.weight"] == IntegerCoding(DType.F16, 128)
    assert all(how.is_lossless for name, how in found.items() if name not in integers)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 5}, "entquant takes 4, 3, 2 bits, not 5"),
        ({}, "entquant takes 4, 3, 2 bits, not 7"),
        ({"bits": 3, "block": 512}, "leave lossless, block and also out"),
        ({"bits": 3, "also": [1]}, "leave lossless, block and also out"),
    ],
)
def test_entquant_refuses_what_the_other_method_takes(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        given(method="entquant", **options)
    with pytest.raises(ValidationError, match=r"neuzip takes .* bits, not 4"):
        given(bits=4)


@pytest.mark.parametrize("shape", [(8,), (64, 64)])
def test_a_tensor_that_is_named_like_a_part_is_told(shape: tuple[int, ...]) -> None:
    shapes = {"w": ("BF16", (64, 64)), "w.nz.words": ("BF16", shape)}
    with pytest.raises(CannotExport, match=r"named like a part of the compressed weight w: rename"):
        choose(shapes, given(), "a/b")
    choose({"v.nz.words": ("BF16", (64, 64)), "w": ("BF16", (64, 64))}, given(), "a/b")


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        ({"also": [0, 3]}, "ask for fewer also"),
        ({"bits": 3, "also": [0, 1]}, "ask for fewer also"),
        ({"bits": "auto", "budget": 5, "also": [0, 3]}, "ask for fewer also"),
    ],
)
def test_more_parts_than_readers_take_are_told(options: dict[str, Any], way_out: str) -> None:
    def check(number: int) -> None:
        shapes = {f"layers.{i}.weight": ("BF16", (64, 64)) for i in range(number)}
        arguments = given(**options)
        check_number(choose(shapes, arguments, "a/b"), arguments, "a/b")

    check(33_333)
    with pytest.raises(CannotExport, match=rf"100,002 tensors.* at most 100,000.*: {way_out}"):
        check(33_334)
