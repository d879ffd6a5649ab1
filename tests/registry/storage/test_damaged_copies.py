"""Copies of packs on this machine that somebody or something has damaged."""

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltahub.registry.storage.cache.entry import SEGMENT_BYTES
from support.stores.cached_stores import cached, pack, read
from support.stores.counting_store import CountingStore


def damage_bit(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        # Most of a small file's bytes are holes; the first ones matter the most.
        at = rng.choice([rng.randrange(len(data)), rng.randrange(min(len(data), 5000))])
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)


def damage_cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size + 1))


def damage_delete(path: Path, rng: random.Random) -> None:
    path.unlink()


def damage_garbage(path: Path, rng: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(rng.choice([0, 8, 16, 4096, 4104, rng.randrange(path.stat().st_size + 1)]))
        file.write(rng.randbytes(rng.choice([1, 8, 64, 5000])))


def damage_swap(path: Path, rng: random.Random) -> None:
    """Another file of the cache in the place of this one, or its bytes without its header."""
    other = rng.choice(sorted(path.parent.iterdir()))
    data = other.read_bytes()
    if rng.random() < 0.5:
        with path.open("r+b") as file:
            file.seek(24)
            file.write(data[24:])
    else:
        path.write_bytes(data)


DAMAGES = [damage_bit, damage_cut, damage_delete, damage_garbage, damage_swap]


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=150, deadline=None)
def test_a_damaged_copy_never_gives_a_wrong_byte(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng, inner = random.Random(seed), CountingStore()
    folder = tmp_path_factory.mktemp("damaged")
    keys = [f"packs/ab/{i}" for i in range(3)]
    whole = {key: pack(i, rng.randrange(1, 3 * SEGMENT_BYTES)) for i, key in enumerate(keys)}
    for key in keys:
        inner.put(key, [whole[key]])
    store = cached(folder, inner)
    for _ in range(6):
        for key in rng.sample(keys, 2):
            size = len(whole[key])
            start = rng.randrange(size)
            end = rng.randrange(start, size) + 1
            assert read(store, key, start, end) == whole[key][start:end]
        path = rng.choice(sorted(folder.iterdir()))
        rng.choice(DAMAGES)(path, rng)
    for key in keys:
        assert read(store, key, 0, len(whole[key])) == whole[key]
    store.close()  # an open file's header is not read again
    store = cached(folder, inner)
    for key in keys:
        assert read(store, key, 0, len(whole[key])) == whole[key]
    # What was damaged is whole again.
    inner.is_away = True
    for key in keys:
        assert read(store, key, 0, len(whole[key])) == whole[key]
    store.close()
