"""Headers of the safetensors library are read; headers that break the format are refused."""

import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from deltahub.codecs import HEADER_BITS, HeaderLimits, InvalidSafetensors, layout
from deltahub.codecs import parse_safetensors_header as parse_header
from support.models.hostile_headers import DATA, GOOD, HOSTILE, OTHER, but, head_of


def parse(document: object) -> Any:
    head = head_of(document)
    return parse_header(head, len(head) + DATA)


@given(
    arrays=st.dictionaries(
        st.text(max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(
            st.sampled_from(["<f4", "<f2", "<i8", "<u1"]), st.lists(st.integers(0, 4), max_size=3)
        ),
        max_size=8,
    ),
    metadata=st.one_of(
        st.none(),
        # Without tensors and with empty metadata the library writes invalid JSON.
        st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=1),
    ),
)
def test_a_file_of_the_safetensors_library_is_read_and_covered(
    arrays: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None
) -> None:
    tensors = {name: np.ones(shape, dtype) for name, (dtype, shape) in arrays.items()}
    file = save(tensors, metadata)
    header = parse_header(file, len(file))
    assert {tensor.name for tensor in header.tensors} == set(tensors)
    assert header.metadata == (metadata or {})
    for tensor in header.tensors:
        array = tensors[tensor.name]
        assert tensor.shape == array.shape
        assert file[tensor.start : tensor.end] == array.tobytes()
    pieces = layout(header, len(file))
    assert pieces[0].kind == "literal"
    assert [piece.start for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == len(file)
    sized = [tensor for tensor in header.tensors if tensor.end > tensor.start]
    assert [piece.info for piece in pieces if piece.kind == "tensor"] == sized


def test_tensors_are_sorted_by_where_they_lie() -> None:
    header = parse({"b": OTHER, "a": GOOD})
    assert [tensor.name for tensor in header.tensors] == ["a", "b"]


def test_gaps_and_trailing_bytes_are_pieces() -> None:
    far = {"dtype": "U8", "shape": [3], "data_offsets": [40, 43]}
    head = head_of({"a": far, "b": GOOD})
    pieces = layout(parse_header(head, len(head) + DATA), len(head) + DATA)
    spans = [(piece.kind, piece.start - len(head), piece.end - len(head)) for piece in pieces]
    assert spans == [
        ("literal", -len(head), 0),
        ("tensor", 0, 24),
        ("literal", 24, 40),
        ("tensor", 40, 43),
        ("literal", 43, 64),
    ]


def test_spaces_after_the_json_are_padding() -> None:
    text = json.dumps({"a": GOOD}).encode() + b" " * 13
    header = parse(text)
    assert header.header_length == 8 + len(text)
    assert header.tensors[0].start == 8 + len(text)


def test_a_file_without_tensors_is_read() -> None:
    assert parse({}).tensors == ()
    assert parse({"__metadata__": {"format": "pt"}}).metadata == {"format": "pt"}


def test_an_empty_tensor_may_lie_anywhere() -> None:
    empty = {"dtype": "F32", "shape": [0, 5], "data_offsets": [10, 10]}
    assert len(parse({"a": GOOD, "empty": empty}).tensors) == 2


@pytest.mark.parametrize("dtype", list(HEADER_BITS))
def test_every_dtype_of_the_format_has_a_size(dtype: str) -> None:
    size = HEADER_BITS[dtype]  # 8 elements fill whole bytes for any number of bits
    header = parse({"a": {"dtype": dtype, "shape": [8], "data_offsets": [0, size]}})
    assert header.tensors[0].dtype == dtype
    with pytest.raises(InvalidSafetensors, match="takes"):
        parse({"a": {"dtype": dtype, "shape": [8], "data_offsets": [0, size + 1]}})


@pytest.mark.parametrize("fault", list(HOSTILE))
def test_a_header_is_refused_that_has(fault: str) -> None:
    document, message = HOSTILE[fault]
    with pytest.raises(InvalidSafetensors, match=message):
        parse(document)


@pytest.mark.parametrize("length", [0, 1, 7])
def test_a_file_too_short_for_a_length_is_refused(length: int) -> None:
    with pytest.raises(InvalidSafetensors, match="no safetensors header"):
        parse_header(bytes(length), length)


@pytest.mark.parametrize("length", [100_000_001, 1 << 32, (1 << 64) - 1])
def test_a_header_above_100_mb_is_refused_unread(length: int) -> None:
    with pytest.raises(InvalidSafetensors, match="100000000"):
        parse_header(length.to_bytes(8, "little") + b"{}", 1 << 40)


def test_a_header_longer_than_its_file_is_refused() -> None:
    head = head_of({"a": GOOD})
    for size in range(8, len(head)):
        with pytest.raises(InvalidSafetensors):
            parse_header(head[:size], size)
    with pytest.raises(InvalidSafetensors, match="given of a header"):
        parse_header(head[:-1], 1000)


def test_more_tensors_than_allowed_are_refused() -> None:
    head = head_of({str(i): GOOD | {"data_offsets": [24 * i, 24 * i + 24]} for i in range(11)})
    size = len(head) + 24 * 11
    assert len(parse_header(head, size, HeaderLimits(max_tensors=11)).tensors) == 11
    with pytest.raises(InvalidSafetensors, match="at most 32"):
        parse_header(head, size, HeaderLimits(max_tensors=10))


def test_a_few_bytes_a_value_do_not_buy_much_memory() -> None:
    for text in (b'{"a":[' + b"0," * 5_000_000 + b"0]}", b'{"a":[' + b"[]," * 900_000 + b"0]}"):
        with pytest.raises(InvalidSafetensors, match="at most"):
            parse(text)


def test_letters_beyond_ascii_count_four_times() -> None:
    limits = HeaderLimits(max_header_bytes=1000)
    for name in ("\u00e4" * 130, "a" * 800):
        head = head_of({name: GOOD})
        file_size = len(head) + DATA
        if name.isascii():
            assert len(parse_header(head, file_size, limits).tensors) == 1
        else:
            for document in (head, head_of({name: GOOD}, ensure_ascii=False)):
                with pytest.raises(InvalidSafetensors, match="250 bytes"):
                    parse_header(document, len(document) + DATA, limits)


@given(junk=st.binary(max_size=100))
def test_junk_is_refused_or_read_but_never_crashes(junk: bytes) -> None:
    for text in (junk, b'{"a":' + junk + b"}"):
        try:
            parse(text)
        except InvalidSafetensors:
            continue


@given(
    document=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["a", "dtype", "shape", "data_offsets"]), inner),
        ),
        max_leaves=8,
    )
)
def test_any_json_is_refused_or_read(document: object) -> None:
    for candidate in ({"a": document}, {"__metadata__": document}, but(shape=document)):
        try:
            parse(candidate)
        except InvalidSafetensors:
            continue


def test_ten_thousand_tensors_are_read_in_one_pass() -> None:
    document = {
        f"model.layers.{i}.weight": GOOD | {"data_offsets": [24 * i, 24 * i + 24]}
        for i in range(10_000)
    }
    head = head_of(document)
    # As many loops over all of them as there are tensors would take minutes.
    begin = time.process_time()
    header = parse_header(head, len(head) + 240_000)
    assert time.process_time() - begin < 10
    assert len(header.tensors) == 10_000
