"""Checksums by block: the same however the bytes arrive, and different for every damage."""

from hypothesis import given
from hypothesis import strategies as st

from deltahub.registry.storage.checksums import (
    BLOCK_BYTES,
    CHECKSUM_BYTES,
    BlockChecksums,
    block_checks,
)

DATA = bytes(i * i % 251 for i in range(BLOCK_BYTES)) * 2 + b"the end of the last block"


def table_of(data: bytes, cuts: list[int]) -> bytes:
    checksums = BlockChecksums()
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        checksums = checksums.copy()
        checksums.update(memoryview(data)[start:end])
    return checksums.table()


@given(st.lists(st.integers(0, len(DATA)), max_size=6).map(sorted))
def test_the_table_does_not_depend_on_the_pieces(cuts: list[int]) -> None:
    assert table_of(DATA, cuts) == table_of(DATA, [])


def test_every_block_has_one_checksum_that_knows_its_place() -> None:
    table = table_of(DATA, [])
    assert len(table) == 3 * CHECKSUM_BYTES
    first, second, last = (table[i : i + 8] for i in range(0, len(table), 8))
    assert block_checks(DATA[:BLOCK_BYTES], 0, first)
    assert block_checks(DATA[2 * BLOCK_BYTES :], 2, last)
    # The first two blocks have the same bytes.
    assert first != second
    assert not block_checks(DATA[:BLOCK_BYTES], 1, first)
    assert BlockChecksums().table() == b""


@given(st.integers(0, 8 * len(DATA) - 1))
def test_every_flipped_bit_is_found(bit: int) -> None:
    damaged = bytearray(DATA)
    damaged[bit // 8] ^= 1 << bit % 8
    index = bit // 8 // BLOCK_BYTES
    block = damaged[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
    assert not block_checks(block, index, table_of(DATA, [])[8 * index : 8 * index + 8])
