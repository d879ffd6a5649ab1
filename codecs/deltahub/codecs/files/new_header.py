"""The header of a safetensors file that is made, not read."""

import json
from collections.abc import Iterable, Mapping
from math import prod

from deltahub.codecs.dtypes import HEADER_BITS
from deltahub.codecs.files.safetensors import LENGTH_BYTES

# Tensors begin at a multiple of this, as files of the safetensors library do.
_ALIGNMENT = 8


def new_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> bytes:
    """The bytes of a file before its tensors, which follow back to back in the order given.

    tensors: (name, dtype, shape) of each. metadata: the texts under `__metadata__`.
    """
    document: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, dtype, shape in tensors:
        end = at + prod(shape) * HEADER_BITS[dtype] // 8
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + LENGTH_BYTES) % _ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
