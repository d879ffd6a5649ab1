"""Every rival, in the order of the tables."""

from benchmarks.rivals.alone import ZipNN, ZipNNDelta, Zstd
from benchmarks.rivals.fm_delta_classes import FmDeltaClasses
from benchmarks.rivals.mapped import OpenZLDelta, PcodecDelta
from benchmarks.rivals.rival import Rival
from benchmarks.rivals.tensorx import TensorX

RIVALS: tuple[Rival, ...] = (
    FmDeltaClasses(),
    TensorX(),
    PcodecDelta(),
    OpenZLDelta(),
    ZipNNDelta(),
    ZipNN(),
    Zstd(),
)
BY_NAME = {rival.name: rival for rival in RIVALS}
