"""Chunks hold every byte, in order, and copy only small buffers."""

from collections.abc import Iterator
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from deltahub.registry.packs.tensor_reader import RANGE_BYTES
from deltahub.server.streaming.chunks import Chunk, in_chunks

LARGE = 20 << 10
SIZES = st.lists(st.integers(0, 3 * LARGE) | st.integers(0, 40), max_size=30)


@given(SIZES, st.integers(1, 4 * LARGE), st.integers(1, LARGE))
def test_chunks_hold_every_byte_in_order_and_have_a_limit(
    sizes: list[int], limit: int, first: int
) -> None:
    pieces = [bytes([i]) * size for i, size in enumerate(sizes)]
    chunks = list(in_chunks(iter(pieces), limit, first))
    assert b"".join(map(bytes, chunks)) == b"".join(pieces)
    assert all(0 < len(chunk) <= limit for chunk in chunks)
    assert all(len(chunk) == len(bytes(chunk)) for chunk in chunks)
    # Two neighbours would not fit into one chunk, or the first one is 3/4 full.
    for one, next_one in pairwise(chunks[1:]):
        assert len(one) + len(next_one.views[0]) > limit or len(one) >= limit - limit // 4


def test_the_first_chunk_does_not_wait_for_the_second() -> None:
    produced = []

    def pieces() -> Iterator[bytes]:
        for i in range(4):
            produced.append(i)
            yield bytes(LARGE)

    chunks = in_chunks(pieces(), 4 * LARGE, LARGE)
    assert len(next(chunks)) == LARGE
    assert produced == [0]
    assert [len(chunk) for chunk in chunks] == [3 * LARGE]


def test_only_small_neighbours_are_copied_together() -> None:
    large = bytes(LARGE)
    pieces = [b"a", b"b", large, b"c", large, large, b"d", b"e"]
    (chunk,) = in_chunks(iter(pieces), 8 * LARGE, 8 * LARGE)
    assert [len(view) for view in chunk.views] == [2, LARGE, 1, LARGE, LARGE, 2]
    assert all(view.obj is large for view in chunk.views if len(view) == LARGE)


@given(st.lists(st.lists(st.integers(1, LARGE), max_size=5), max_size=12))
def test_buffers_that_belong_together_stay_together(sizes: list[list[int]]) -> None:
    groups = [[memoryview(bytes([i]) * n) for n in row] for i, row in enumerate(sizes)]
    limit = 5 * LARGE
    chunks = list(in_chunks(iter(groups), limit, LARGE))
    whole = [b"".join(group) for group in groups]
    assert b"".join(map(bytes, chunks)) == b"".join(whole)
    assert all(0 < len(chunk) <= limit for chunk in chunks)
    ends = set(accumulate(map(len, whole)))
    assert set(accumulate(map(len, chunks))) <= ends


def test_a_run_that_is_nearly_full_is_a_chunk_of_its_own() -> None:
    """A run held back for the next chunk would keep the decoder's buffer from being reused."""
    runs = [memoryview(bytes(RANGE_BYTES - n * LARGE)) for n in range(5)]
    chunks = list(in_chunks(iter(runs)))
    assert [len(chunk) for chunk in chunks] == [run.nbytes for run in runs]


def test_a_chunk_of_nothing_is_empty() -> None:
    assert list(in_chunks(iter([b"", b""]))) == []
    assert len(Chunk([])) == 0
