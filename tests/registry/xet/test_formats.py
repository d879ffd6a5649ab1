"""Xet formats: data of the real client is read; anything else is refused in bounded memory.

The vectors were written by hf_xet 1.8.0: three files, of text, floats and noise, in one xorb.
"""

import random
import struct
import tracemalloc
from hashlib import sha256
from pathlib import Path

import lz4.frame
import pytest
import xxhash
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.registry.errors import HashMismatch, InvalidRequest, LimitExceeded, RegistryError
from deltahub.registry.xet.chunks import ChunkDecoder, ChunkHeader
from deltahub.registry.xet.hashes import (
    Merkle,
    chunk_hash,
    from_text,
    range_hash,
    to_text,
    xorb_hash,
)
from deltahub.registry.xet.shard import Shard
from deltahub.registry.xet.xorb import MAX_CHUNKS, XorbCheck, XorbIndex
from support.registry.xet import FileOf, ShardOf, TermOf, XorbOf, pack_chunk

VECTORS = Path(__file__).parents[2] / "vectors" / "xet"
NAME = "4baacfca1a46249c94ec76e36c89303e784ee52331bdd7463c2191b179391811"
XORB = (VECTORS / f"{NAME}.xorb").read_bytes()
SHARD = (VECTORS / "three_files.shard").read_bytes()
MAX_FILES = 100


def check(body: bytes, digest: bytes, block_bytes: int = 5000) -> XorbIndex:
    found = XorbCheck(digest)
    for start in range(0, len(body), block_bytes):
        for _ in found.take(body[start : start + block_bytes]):
            continue
    return found.finish()


def decoded(body: bytes) -> list[bytes]:
    """The chunks of a xorb of all three schemes."""
    chunks, decoder, schemes = [], ChunkDecoder(), set()
    while body:
        header = ChunkHeader.parse(body)
        schemes.add(header.scheme)
        end = 8 + header.stored
        chunks.append(bytes(decoder.decode(header, memoryview(body)[8:end])))
        body = body[end:]
    assert schemes == {0, 1, 2}
    return chunks


def reference_root(nodes: list[tuple[bytes, int]]) -> bytes:
    """The Merkle tree as the specification defines it, level by level over the whole list."""
    while len(nodes) > 1:
        above = []
        while nodes:
            n = min(9, len(nodes))
            for i in range(2, n):
                if struct.unpack("<4Q", nodes[i][0])[3] % 4 == 0:
                    n = i + 1
                    break
            lines = "".join(f"{to_text(digest)} : {size}\n" for digest, size in nodes[:n])
            above.append((node_hash(lines.encode()), sum(size for _, size in nodes[:n])))
            nodes = nodes[n:]
        nodes = above
    return nodes[0][0]


def node_hash(lines: bytes) -> bytes:
    key = "017ec5c7a5472996fd946666b48a02e65ddd536f37c76dd2f86352e64a53713f"
    return blake3(lines, key=bytes.fromhex(key)).digest()


@given(n=st.integers(1, 400), seed=st.integers(0, 99))
@settings(deadline=None)
def test_the_tree_over_chunks_as_they_come_is_that_over_all_at_once(n: int, seed: int) -> None:
    rng = random.Random(seed)
    nodes = [(rng.randbytes(32), rng.randrange(1, 99_999)) for _ in range(n)]
    assert xorb_hash(nodes) == reference_root(nodes)


def test_the_hashes_are_those_of_the_specification() -> None:
    one = from_text("cfc5d07f6f03c29bbf424132963fe08d19a37d5757aaf520bf08119f05cd56d6")
    two = from_text("c3e67584b5c4fc2a89837ec39e40f2c8a6bb0b2987ac94cd4b31e5fbdd210a72")
    three = from_text("0d2beb91b9196929a5ddec9f6e306924ddf4a24268e3e59fd8464738d525af37")
    tree = Merkle()
    tree.update([(one, 100), (two, 200), (three, 300)])
    root = "71ec1275fca074724e2dd666921b3277c7cee603e4d025bcab2d4050015be2bc"
    assert to_text(tree.root()) == root
    file = "54e55dccc6653c612bdb5576c5d3cb34bb31bc4e100248abccf4c908b3ef7715"
    assert to_text(tree.file_hash()) == file
    assert Merkle().file_hash() == Merkle().root() == bytes(32)


@given(st.binary(min_size=32, max_size=32))
def test_the_text_of_a_hash_is_read_back(digest: bytes) -> None:
    assert from_text(to_text(digest)) == digest


@pytest.mark.parametrize("text", ["", "0" * 63, "G" * 64, "A" * 64, "0" * 65, "0" * 64 + "\n"])
def test_what_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no Xet hash"):
        from_text(text)


def test_what_the_real_client_wrote_is_read() -> None:
    index = check(XORB, from_text(NAME))
    chunks = decoded(XORB)
    assert [(chunk_hash(c), len(c)) for c in chunks] == list(index.entries())
    assert index.size == sum(map(len, chunks))
    shard = Shard(memoryview(SHARD), MAX_FILES)
    assert len(shard.files) == 3
    for file in shard.files:
        (term,) = file.terms()
        assert to_text(term.xorb) == NAME
        part = index.part(term.first, term.end)
        assert term.verification == range_hash(part.hashes())
        assert term.size == part.size == file.size
        tree = Merkle()
        tree.update(part.entries())
        assert tree.file_hash() == file.hash
        data = b"".join(chunks[term.first : term.end])
        assert sha256(data).hexdigest() == file.sha256


def test_our_own_encoder_writes_the_same_shard_format() -> None:
    index = check(XORB, from_text(NAME))
    xorb = XorbOf(decoded(XORB))
    terms = [next(file.terms()) for file in Shard(memoryview(SHARD), MAX_FILES).files]
    ours = ShardOf([FileOf([TermOf(xorb, t.first, t.end)]) for t in terms], [xorb]).body
    assert index.n_chunks == len(xorb.chunks)
    assert len(Shard(memoryview(ours), MAX_FILES).files) == 3
    # File records are equal byte for byte. Xorb records differ in flags and stored sizes.
    n_file_bytes = 48 + 3 * 4 * 48 + 48
    assert ours[:n_file_bytes] == SHARD[:n_file_bytes]


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=30),
    scheme=st.integers(0, 2),
    block_bytes=st.integers(1, 400),
)
@settings(deadline=None)
def test_a_xorb_of_any_chunks_is_read_in_blocks_of_any_size(
    chunks: list[bytes], scheme: int, block_bytes: int
) -> None:
    xorb = XorbOf(chunks, scheme)
    found = XorbCheck(xorb.hash)
    kept = b"".join(
        bytes(chunk)
        for i in range(0, len(xorb.body), block_bytes)
        for chunk in found.take(xorb.body[i : i + block_bytes])
    )
    assert kept == b"".join(chunks)
    assert list(found.finish().entries()) == [(chunk_hash(c), len(c)) for c in chunks]


@given(st.data())
@settings(deadline=None)
def test_a_xorb_cut_short_or_with_a_flipped_bit_is_refused(data: st.DataObject) -> None:
    damaged = bytearray(XORB)
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(XORB) - 1)) :]
    else:
        # A flipped reserved bit in the LZ4 frame of the text chunk changes nothing.
        place = data.draw(st.integers(0, len(XORB) - 1))
        damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        index = check(bytes(damaged), from_text(NAME))
    except RegistryError:
        return
    assert len(damaged) == len(XORB)
    assert index == check(XORB, from_text(NAME))


@given(st.data())
@settings(deadline=None)
def test_a_shard_that_is_damaged_is_read_or_refused_and_never_breaks(data: st.DataObject) -> None:
    damaged = bytearray(SHARD)
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(SHARD) - 1)) :]
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            place = data.draw(st.integers(0, len(damaged) - 1))
            damaged[place] = data.draw(st.integers(0, 255))
    try:
        for file in Shard(memoryview(bytes(damaged)), MAX_FILES).files:
            assert list(file.terms()) is not None
    except (InvalidRequest, LimitExceeded):
        return


@given(st.binary(max_size=2000))
def test_junk_is_neither_xorb_nor_shard(junk: bytes) -> None:
    with pytest.raises(RegistryError):
        check(junk, bytes(32))
    with pytest.raises(InvalidRequest):
        Shard(memoryview(junk), MAX_FILES)


def chunk(stored: int, scheme: int, size: int, body: bytes, version: int = 0) -> bytes:
    head = bytes([version]) + stored.to_bytes(3, "little") + bytes([scheme])
    return head + size.to_bytes(3, "little") + body


BOMB = lz4.frame.compress(bytes(60 << 20))[: 256 << 10]
LIAR = lz4.frame.compress(b"x" * 100)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "no chunks"),
        (b"\0\0\0", "ends within"),
        (chunk(5, 0, 5, b"abc"), "ends within"),
        (chunk(5, 0, 5, b"abcde", version=1), "version 1"),
        (chunk(5, 3, 5, b"abcde"), "scheme 3"),
        (chunk(5, 99, 5, b"abcde"), "scheme 99"),
        (chunk(5, 0, 6, b"abcde"), "stored as it is"),
        (chunk(0, 1, 6, b""), "stored in 0"),
        (chunk(1, 1, 0, b"a"), "has 0 bytes"),
        (chunk(1, 1, 131_073, b"a"), "131073"),
        (chunk(262_145, 1, 6, b""), "262145"),
        (chunk(40, 1, 5, b"abcde" * 8), "no LZ4 frame"),
        (chunk(5, 1, 5, b"abcde"), "another number"),
        (chunk(len(LIAR), 1, 99, LIAR), "another number"),
        (chunk(len(LIAR), 1, 101, LIAR), "another number"),
        (chunk(len(LIAR) + 1, 1, 100, LIAR + b"!"), "another number"),
        (chunk(len(LIAR) - 4, 1, 100, LIAR[:-4]), "another number"),
        (chunk(len(BOMB), 2, 131_072, BOMB), "another number"),
        (pack_chunk(b"abc") + b"XETBLOB" + bytes(1 << 20), "footer"),
        (pack_chunk(b"a") * (MAX_CHUNKS + 1), f"more than {MAX_CHUNKS} chunks"),
        (pack_chunk(b"abc"), "not of"),
    ],
)
def test_what_no_client_writes_is_refused_with_a_sentence(body: bytes, sentence: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises((InvalidRequest, LimitExceeded, HashMismatch), match=sentence):
            check(body, bytes(32), block_bytes=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_the_chunks_of_a_block_are_decoded_one_at_a_time() -> None:
    zeros = XorbOf([bytes(128 << 10)] * 400, scheme=2)
    body = zeros.body
    assert len(body) < 1 << 20
    found = XorbCheck(zeros.hash)
    tracemalloc.start()
    try:
        assert sum(len(chunk) for chunk in found.take(body)) == 400 << 17
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert found.finish().n_chunks == 400


def test_a_size_that_a_frame_claims_is_not_believed() -> None:
    # Adds the content size (8 bytes after magic and flags), and a new header checksum.
    frame = bytearray(lz4.frame.compress(b"x" * 100, store_size=True))
    frame[6:14] = (1 << 40).to_bytes(8, "little")
    frame[14] = xxhash.xxh32(bytes(frame[4:14])).intdigest() >> 8 & 0xFF
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            check(chunk(len(frame), 1, 100, bytes(frame)), bytes(32))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_footer_of_an_older_client_is_not_kept() -> None:
    found = XorbCheck(from_text(NAME))
    body = XORB + b"XETBLOB" + bytes(1000)
    blocks = [body[i : i + 999] for i in range(0, len(body), 999)]
    kept = [bytes(chunk) for block in blocks for chunk in found.take(block)]
    assert b"".join(kept) == b"".join(decoded(XORB))
    assert found.finish().n_chunks == 4


FILE = FileOf([TermOf(XorbOf([b"one", b"two"]))])
GOOD = ShardOf([FILE]).body


def rewritten(place: int, form: str, value: int) -> bytes:
    body = bytearray(GOOD)
    struct.pack_into(form, body, place, value)
    return bytes(body)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (GOOD[:47], "ends within its header"),
        (b"X" + GOOD[1:], "no shard"),
        (rewritten(32, "<Q", 3), "version 3"),
        (GOOD[:-1], "cut short"),
        (GOOD + b"!", "follow"),
        (rewritten(48 + 36, "<I", 1 << 31), "cut short"),
        (rewritten(48 + 32, "<I", 1), "flags 0x1"),
        (rewritten(96 + 40, "<I", 2), "chunks 2 to 2"),
        (rewritten(96 + 44, "<I", MAX_CHUNKS + 1), "which no xorb has"),
        (rewritten(96 + 36, "<I", 0), "takes 0 bytes"),
        (rewritten(96 + 36, "<I", 262_145), "262145 bytes"),
    ],
)
def test_a_shard_that_cannot_be_is_refused_with_a_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        [list(file.terms()) for file in Shard(memoryview(body), MAX_FILES).files]
