"""How fast a GPU decodes frames, one alone or several by one call, and weights of exports."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.gpu.cases import Case
from benchmarks.gpu.checks import Gpu
from benchmarks.gpu.export_cases import ExportCase
from deltahub.codecs.cuda.frames import GpuFrames
from deltahub.codecs.cuda.weights import GpuDelta, GpuWeight

GB = 1e9
REPEATS = 20

Timer = Callable[[Callable[[], None]], float]
"""timer(work): the seconds that the device takes for what `work` begins."""


@dataclass(frozen=True)
class Speed:
    """GB of output a second: the median of the runs, the slowest and the fastest."""

    case: Case | ExportCase
    n_frames: int
    is_verified: bool
    typical: float
    slowest: float
    fastest: float

    def row(self) -> dict[str, object]:
        return {
            "frames": self.case.name,
            "frames_a_call": self.n_frames,
            "decoded_mb_a_frame": round(len(self.case.source) / 1e6, 3),
            "stored_share": round(self.case.stored_share, 4),
            "verified": self.is_verified,
            "gb_per_s": round(self.typical, 1),
            "slowest_gb_per_s": round(self.slowest, 1),
            "fastest_gb_per_s": round(self.fastest, 1),
            "aim_gb_per_s": self.case.aim if self.has_aim else None,
        }

    @property
    def has_aim(self) -> bool:
        """Aims are for several frames at once, as a layer of a model has them."""
        has_many = self.n_frames > 1 or isinstance(self.case, ExportCase)
        return self.case.aim is not None and has_many and not self.is_verified


def measure(
    gpu: Gpu, case: Case, n_frames: int, timer: Timer, *, repeats: int = REPEATS
) -> list[Speed]:
    """The speeds with and without verification. The bytes are checked before and after."""
    frames = GpuFrames([(case.view, case.body)] * n_frames, gpu.device)
    outs = [gpu.empty(len(case.source)) for _ in range(n_frames)]
    bases = None if case.base is None else [gpu.copied(case.base)] * n_frames

    def decode(is_verified: bool) -> None:
        frames.decode_into(outs, bases, verify=is_verified)

    return _speeds(case, decode, frames.check, outs, timer, repeats)


def measure_export(
    gpu: Gpu, case: ExportCase, timer: Timer, *, repeats: int = REPEATS
) -> list[Speed]:
    """The same of one weight, whose slices are decoded by one call."""
    weight, out = GpuWeight(case.weight, case.bits, gpu.device), gpu.empty(len(case.source))
    delta = GpuDelta(case.weight, case.deltas or (), gpu.device)

    def decode(is_verified: bool) -> None:
        weight.decode_into(out, verify=is_verified)
        delta.apply_to(out, verify=is_verified)

    def check() -> None:
        weight.check()
        delta.check()

    return _speeds(case, decode, check, [out], timer, repeats)


def _speeds(
    case: Case | ExportCase,
    decode: Callable[[bool], None],
    check: Callable[[], None],
    outs: list[Any],
    timer: Timer,
    repeats: int,
) -> list[Speed]:
    size, speeds = len(case.source), []
    for is_verified in (False, True):

        def work(is_verified: bool = is_verified) -> None:
            decode(is_verified)

        work()  # compiles the kernels
        check()
        rates = [size * len(outs) / GB / timer(work) for _ in range(repeats)]
        check()
        if any(out.tobytes() != case.source for out in outs):
            raise AssertionError(f"{case.name}: other bytes")
        speeds.append(Speed(case, len(outs), is_verified, median(rates), min(rates), max(rates)))
    return speeds
