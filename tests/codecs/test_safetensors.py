"""Headers that the safetensors library writes are read; what the format forbids is refused."""

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

DATA = 64  # bytes of tensor data after the headers below
GOOD = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
OTHER = {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}


def head_of(document: object, **kwargs: Any) -> bytes:
    text = document if isinstance(document, bytes) else json.dumps(document, **kwargs).encode()
    return len(text).to_bytes(8, "little") + text


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
        # Without tensors and with empty metadata the library writes text that is no JSON.
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


def but(**changes: object) -> dict[str, object]:
    return {"a": GOOD | changes}


SURROGATE = json.dumps({"\ud800": GOOD}).encode()

HOSTILE = {
    "a negative offset": (but(data_offsets=[-24, 0]), "whole numbers"),
    "offsets that are reversed": (but(data_offsets=[24, 0]), "takes"),
    "an offset of 2^63": (but(data_offsets=[1 << 63, (1 << 63) + 24]), "whole numbers"),
    "a tensor that ends beyond the file": (but(data_offsets=[60, 84]), "the file at"),
    "an empty tensor beyond the file": (but(shape=[0], data_offsets=[65, 65]), "the file at"),
    "three offsets": (but(data_offsets=[0, 24, 48]), "two whole numbers"),
    "offsets that are text": (but(data_offsets="ab"), "two whole numbers"),
    "offsets that are true and false": (
        but(dtype="U8", shape=[1], data_offsets=[False, True]),
        "whole",
    ),
    "offsets that are floats": (but(data_offsets=[0.0, 24.0]), "whole numbers"),
    "two tensors in the same bytes": ({"a": GOOD, "b": GOOD}, "overlap"),
    "two tensors that overlap by a byte": (
        {"a": GOOD, "b": OTHER | {"data_offsets": [23, 31]}},
        "overlap",
    ),
    "a tensor within another": ({"a": GOOD, "b": OTHER | {"data_offsets": [8, 16]}}, "overlap"),
    "a shape larger than its bytes": (but(shape=[2, 4]), "takes"),
    "a shape smaller than its bytes": (but(shape=[2, 2]), "takes"),
    "a shape whose product wraps to its bytes": (but(shape=[1 << 62, 4, 6]), "takes"),
    "a shape of enormous product": (but(shape=[(1 << 63) - 1] * 64), "far more"),
    "a negative size": (but(shape=[-2, -3]), "whole numbers"),
    "a size that is true": (but(shape=[True, 6]), "whole numbers"),
    "a size that is text": (but(shape=["6"]), "whole numbers"),
    "a size that is a float": (but(shape=[6.0]), "whole numbers"),
    "a size that is infinite": (
        b'{"a":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,24]}}',
        "whole",
    ),
    "a shape that is a number": (but(shape=6), "whole numbers"),
    "too many dimensions": (but(shape=[1] * 64 + [6]), "up to 64"),
    "half a byte": (but(dtype="F4", shape=[3], data_offsets=[0, 1]), "takes"),
    "an unknown dtype": (but(dtype="F128"), "unknown dtype"),
    "a dtype in small letters": (but(dtype="f32"), "unknown dtype"),
    "a dtype that is a number": (but(dtype=32), "unknown dtype"),
    "a dtype that is a list": (but(dtype=["F32"]), "unknown dtype"),
    "a missing dtype": ({"a": {"shape": [6], "data_offsets": [0, 24]}}, "exactly"),
    "a key too many": (but(stride=[1]), "exactly"),
    "a tensor that is a number": ({"a": 1}, "exactly"),
    "a tensor that is null": ({"a": None}, "exactly"),
    "metadata that is a number": ({"__metadata__": 1}, "__metadata__"),
    "metadata that is null": ({"__metadata__": None}, "__metadata__"),
    "metadata with a number": ({"__metadata__": {"epoch": 3}}, "epoch"),
    "metadata within metadata": ({"__metadata__": {"a": {"b": "c"}}}, "__metadata__"),
    "a name twice": (b'{"a":%b,"a":%b}' % ((json.dumps(GOOD).encode(),) * 2), "twice"),
    "metadata twice": (b'{"__metadata__":{},"__metadata__":{}}', "twice"),
    "a dtype twice": (
        b'{"a":{"dtype":"U8","dtype":"F32","shape":[6],"data_offsets":[0,24]}}',
        "twice",
    ),
    "half a surrogate pair in a name": (SURROGATE, "surrogate"),
    "half a surrogate pair in metadata": ({"__metadata__": {"a": "\udfff"}}, "surrogate"),
    "bytes that are not UTF-8": (b'{"\xff":{}}', "UTF-8"),
    "UTF-8 of a surrogate": (b'{"\xed\xa0\x80":{}}', "UTF-8"),
    "a list": (b"[]", "begin"),
    "a space before the JSON": (b" {}", "begin"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "begin"),
    "nothing": (b"", "begin"),
    "JSON cut off": (b'{"a":{"dtype":', "refused"),
    "a string cut off": (b'{"a', "refused"),
    "an escape cut off": (b'{"a\\', "refused"),
    "brackets that do not match": (b'{"a":[}]', "refused"),
    "bytes after the JSON": (b"{}{}", "not JSON"),
    "zeros after the JSON": (b"{}\0\0", "not JSON"),
    "a control character in a name": (b'{"a\nb":{}}', "not JSON"),
    "a number of 5000 digits": (b'{"a":%b}' % (b"9" * 5000), "not JSON"),
    "deep arrays": (b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "at most"),
    "arrays below the limit on their number, but deep": (
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "deeper",
    ),
    "deep objects": (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "deeper"),
    "deep arrays that do not close": (b'{"a":' + b"[" * 100_000, "deeper"),
}


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


def test_ten_thousand_tensors_are_read_within_a_second() -> None:
    document = {
        f"model.layers.{i}.weight": GOOD | {"data_offsets": [24 * i, 24 * i + 24]}
        for i in range(10_000)
    }
    head = head_of(document)
    begin = time.process_time()
    header = parse_header(head, len(head) + 240_000)
    assert time.process_time() - begin < 1
    assert len(header.tensors) == 10_000
