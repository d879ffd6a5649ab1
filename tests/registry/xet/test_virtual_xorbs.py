"""A stored file as virtual xorbs: the ranges that a client downloads decode to its bytes."""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.registry.xet import virtual_xorbs
from deltahub.registry.xet.chunks import ChunkDecoder, ChunkHeader
from deltahub.registry.xet.virtual_xorbs import CHUNK_BYTES, VirtualFile

DATA = Random(0).randbytes(5 * CHUNK_BYTES + 777)


@pytest.fixture(scope="module", autouse=True)
def small_xorbs() -> Iterator[None]:
    """Xorbs of two chunks, so that a small file has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(virtual_xorbs, "XORB_CHUNKS", 2)
        patch.setattr(virtual_xorbs, "_XORB_BYTES", 2 * CHUNK_BYTES)
        yield


def read(start: int, end: int) -> Iterator[memoryview]:
    """Yields pieces whose borders differ from chunk borders."""
    for place in range(start, end, 50_001):
        yield memoryview(DATA)[place : min(place + 50_001, end)]


def stored(file: VirtualFile, xorb: int, start: int, end: int) -> bytes:
    groups = list(file.read(xorb, start, end, read))
    assert all(view for group in groups for view in group)
    return b"".join(view for group in groups for view in group)


def decoded(body: bytes) -> list[bytes]:
    chunks = []
    while body:
        header = ChunkHeader.parse(body)
        chunks.append(bytes(ChunkDecoder().decode(header, body[8 : 8 + header.stored])))
        body = body[8 + header.stored :]
    return chunks


sizes = st.integers(1, len(DATA)) | st.sampled_from(
    [k * CHUNK_BYTES + d for k in range(1, 6) for d in (-1, 0, 1)]
)


@given(size=sizes, data=st.data())
@settings(deadline=None, max_examples=40)
def test_the_terms_of_any_range_hold_its_bytes(size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size - 1))
    end = data.draw(st.integers(start + 1, size))
    file = VirtualFile("0" * 64, size)
    found = b""
    for term in file.terms(start, end):
        chunks = decoded(stored(file, term.xorb, term.stored, term.stored_end))
        assert len(chunks) == term.end - term.first
        assert sum(map(len, chunks)) == term.size
        found += b"".join(chunks)
    offset = start % CHUNK_BYTES
    assert found[offset : offset + end - start] == DATA[start:end]
    assert len(found) - offset - (end - start) < CHUNK_BYTES


@given(size=sizes, data=st.data())
@settings(deadline=None, max_examples=40)
def test_any_part_of_a_xorb_is_that_part_of_the_whole(size: int, data: st.DataObject) -> None:
    file = VirtualFile("0" * 64, size)
    xorb = data.draw(st.integers(0, (size - 1) // (2 * CHUNK_BYTES)))
    n_bytes = file.stored_bytes(xorb)
    whole = stored(file, xorb, 0, n_bytes)
    assert len(whole) == n_bytes
    start = data.draw(st.integers(0, n_bytes - 1))
    end = data.draw(st.integers(start + 1, n_bytes))
    assert stored(file, xorb, start, end) == whole[start:end]


def test_what_comes_in_one_buffer_goes_out_in_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_xorbs, "RANGE_BYTES", CHUNK_BYTES + 1000)
    file = VirtualFile("0" * 64, len(DATA))
    size = file.stored_bytes(1)

    def whole(start: int, end: int) -> Iterator[memoryview]:
        yield memoryview(DATA)[start:end]

    first, second = file.read(1, 0, size, whole)
    # A header and its chunk; the rest of a run, and what follows.
    assert [view.nbytes for view in first] == [8, CHUNK_BYTES, 8, 1000]
    assert [view.nbytes for view in second] == [CHUNK_BYTES - 1000]
    assert first[1].obj is DATA


def test_xorbs_have_names_of_their_own() -> None:
    names = {VirtualFile(sha * 64, 9).xorb_name(i) for sha in "01" for i in range(3)}
    assert len(names) == 6
    assert {len(name) for name in names} == {64}
