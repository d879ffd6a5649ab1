"""GPUs where weights are decoded, as torch and the kernels see them."""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Protocol

import torch

from deltahub.codecs.cuda.arrays import Array
from deltahub.codecs.cuda.cupy_device import CupyDevice
from deltahub.codecs.cuda.device import Device
from deltahub.codecs.errors import InvalidInput, NoGpu, how_to_install
from deltahub.codecs.exports.coding import AnyCoding
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.methods.errors import CannotExport


class Card(Protocol):
    """A GPU, or what takes its place in tests. A stream is one of torch."""

    torch_device: torch.device
    decoder: Device

    def current_stream(self) -> Any:
        """The stream on which the caller computes."""
        ...

    def second_stream(self) -> Any:
        """A stream beside it, always the same."""
        ...

    def wait(self, stream: Any, earlier: Any) -> None:
        """Lets what `stream` is given from now on wait for what `earlier` has been given."""
        ...

    def finish(self) -> None:
        """Waits until the card has done all that it was given."""
        ...


class Resident(Protocol):
    """What a GPU keeps of a weight: a GpuWeight, or one with the differences of fine-tunes."""

    @property
    def size_bytes(self) -> int: ...

    def decode_into(self, out: Array, stream: Any = None, *, verify: bool = True) -> None: ...

    def check(self, stream: Any = None) -> None: ...


class CudaCard:
    """A GPU of this machine."""

    def __init__(self, number: int) -> None:
        self.torch_device = torch.device("cuda", number)
        self.decoder: Device = CupyDevice(number)
        self._second: Any = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]

    def current_stream(self) -> Any:
        return torch.cuda.current_stream(self.torch_device)

    def second_stream(self) -> Any:
        return self._second

    def wait(self, stream: Any, earlier: Any) -> None:
        stream.wait_stream(earlier)

    def finish(self) -> None:
        torch.cuda.synchronize(self.torch_device)


def device_of(device: torch.device | str | int) -> torch.device:
    """A device of torch. InvalidInput if it is none."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as exc:
        raise InvalidInput(
            f"{device!r} is no device: give cpu, or cuda or cuda:N for a GPU"
        ) from exc


def check_integers(devices: Collection[torch.device], codings: Mapping[str, AnyCoding]) -> None:
    """CannotExport if weights that consist of integers were to be decoded on a GPU."""
    gpus = [each for each in devices if each.type == "cuda"]
    name = next((name for name, how in codings.items() if isinstance(how, IntegerCoding)), None)
    if gpus and name is not None:
        raise CannotExport(
            f"{name} consists of integers with a step for each row (entquant), which are decoded on"
            f" a CPU alone, not on {gpus[0]}: run the model on the CPU"
        )


def card_for(device: torch.device) -> Card | None:
    """The card of a device of torch, None for the CPU.

    NoGpu without CuPy, or without such a GPU; CannotExport for devices of other kinds.
    """
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise CannotExport(
            f"compressed weights are decoded on CPUs and on GPUs of CUDA, not on {device}: run the"
            " model there, or load it plain by save_pretrained"
        )
    if not torch.cuda.is_available():
        raise no_gpu()
    number = torch.cuda.current_device() if device.index is None else device.index
    if number >= torch.cuda.device_count():
        raise NoGpu(
            f"there is no {device}: torch finds {torch.cuda.device_count()} GPUs, and the first is"
            " cuda:0"
        )
    return _card(number)


def no_gpu() -> NoGpu:
    return NoGpu(
        "torch finds no GPU: it has to be a build for CUDA, with a driver beside it; decoding needs"
        f" CuPy, too: {how_to_install('gpu')}"
    )


@cache
def _card(number: int) -> Card:
    return CudaCard(number)
