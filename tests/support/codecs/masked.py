"""Frames of the codec masks, from a small merge of random fine-tunes."""

from dataclasses import dataclass

import numpy as np
import torch

from deltahub.codecs import BasePlan, BaseSegment, DType, cast, encode_frame, split_frames
from deltahub.codecs._native import elect_unified, merge_task
from deltahub.codecs.frames import TensorSpec
from deltahub.codecs.frames.base_plan import join_plans
from deltahub.codecs.ids import tensor_id
from deltahub.codecs.masks.codec import Masks
from deltahub.codecs.words import WORD_KINDS

FLOATS = [dtype for dtype in DType if dtype.is_float]
F8 = {DType.F8_E4M3: torch.float8_e4m3fn, DType.F8_E5M2: torch.float8_e5m2}


@dataclass
class Merge:
    """The words of a merge of some tasks: base, tasks, unified, and each task's sums."""

    dtype: DType
    base: bytes
    tasks: list[bytes]
    unified: bytes
    sums: list[tuple[float, float, float, float, float, int, int]]

    def task(self, number: int, scale: float) -> bytes:
        """A task's words after the merge."""
        out = bytearray(len(self.base))
        kind = WORD_KINDS[self.dtype]
        assert merge_task(kind, self.base, self.unified, self.tasks[number], scale, out, 1) == 0
        return bytes(out)


def words_of(dtype: DType, values: np.ndarray) -> bytes:
    if dtype in F8:
        words = torch.from_numpy(values.astype("<f4")).to(F8[dtype])
        return words.view(torch.uint8).numpy().tobytes()
    out = bytearray(values.size * dtype.itemsize)
    cast(values.astype("<f8").tobytes(), DType.F64, dtype, memoryview(out))
    return bytes(out)


def values_of(dtype: DType, words: bytes) -> np.ndarray:
    if dtype in F8:
        raw = torch.frombuffer(bytearray(words), dtype=torch.uint8)
        return np.asarray(raw.view(F8[dtype]).double().numpy())
    out = bytearray(len(words) // dtype.itemsize * 8)
    cast(words, dtype, DType.F64, memoryview(out))
    return np.frombuffer(out, "<f8")


def merge_of(dtype: DType, base: bytes, tasks: list[bytes], threads: int = 1) -> Merge:
    out = bytearray(len(base))
    sums = elect_unified(WORD_KINDS[dtype], base, list(tasks), out, threads)
    return Merge(dtype, base, list(tasks), bytes(out), sums)


def random_merge(dtype: DType, count: int, n_tasks: int = 3, seed: int = 0) -> Merge:
    """Fine-tunes of random weights, each of which leaves a fifth of them as they are."""
    random = np.random.default_rng(seed)
    base = random.normal(size=count) * 0.02
    size = 0.02 if dtype in F8 else 0.003  # steps of F8 are long
    moves = random.normal(size=(n_tasks, count)) * size * (random.random((n_tasks, count)) < 0.8)
    rounded = words_of(dtype, base)
    near = values_of(dtype, rounded)
    return merge_of(dtype, rounded, [words_of(dtype, near + move) for move in moves])


def plan_of(base: bytes, unified: bytes, dtype: DType) -> BasePlan:
    count = len(base) // dtype.itemsize
    names = (tensor_id(b"base" + base), tensor_id(b"unified" + unified))
    return join_plans(
        [BasePlan((BaseSegment(name, dtype, 0, count),), is_cast=False) for name in names]
    )


def encode_masked(merge: Merge, words: bytes, scale: float, threads: int = 1) -> bytes:
    """The frame of a task's merged words, all in one row."""
    count = len(words) // merge.dtype.itemsize
    spec = TensorSpec(tensor_id(words), merge.dtype, 1, count)
    (part,) = split_frames(spec)
    plan = plan_of(merge.base, merge.unified, merge.dtype)
    inputs = merge.base + merge.unified
    return encode_frame(spec, part, words, inputs, plan, Masks(scale), threads)


def masked_frame(dtype: DType, count: int, scale: float = 1.0) -> tuple[bytes, bytes]:
    """(a frame, its two inputs one after the other)."""
    merge = random_merge(dtype, count)
    return encode_masked(merge, merge.task(0, scale), scale), merge.base + merge.unified
