"""What may be wrong with a safetensors header, and a word of the sentence that says so."""

import json
from typing import Any

DATA = 64  # bytes of tensor data after these headers
GOOD = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
OTHER = {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}


def head_of(document: object, **kwargs: Any) -> bytes:
    text = document if isinstance(document, bytes) else json.dumps(document, **kwargs).encode()
    return len(text).to_bytes(8, "little") + text


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
