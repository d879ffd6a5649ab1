"""Bytes grouped by their position in 4-byte words are put back in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltahub.codecs import join_byte_groups


@given(st.binary(max_size=300))
def test_groups_are_joined(data: bytes) -> None:
    grouped = b"".join(data[place::4] for place in range(4))
    out = bytearray(len(data))
    join_byte_groups(grouped, out)
    assert out == data


@pytest.mark.parametrize("n_bytes", [(1 << 17) - 1, 1 << 17, (1 << 17) + 3])
def test_groups_of_whole_chunks_are_joined(n_bytes: int) -> None:
    data = bytes(i * i % 251 for i in range(n_bytes))
    out = bytearray(n_bytes)
    join_byte_groups(memoryview(b"".join(data[place::4] for place in range(4))), memoryview(out))
    assert out == data


def test_what_has_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="same size"):
        join_byte_groups(b"12345678", bytearray(7))
