"""Where the bytes of an array lie, by DLPack: arrays of torch, CuPy and NumPy without a copy."""

import ctypes
from dataclasses import dataclass
from typing import Any, Final, Protocol

from deltahub.codecs.errors import InvalidInput

CPU: Final = 1  # device types of DLPack
CUDA: Final = 2
_NO_SYNCHRONISATION: Final = -1


class Array(Protocol):
    """A contiguous array that speaks DLPack, of any element type."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


@dataclass(frozen=True)
class ArrayBytes:
    """The bytes of an array: an address on a device, and their number."""

    address: int
    size: int
    device: tuple[int, int]  # DLPack's type and number

    def part(self, begin: int, size: int) -> "ArrayBytes":
        """Bytes [begin, begin + size), which lie within these."""
        return ArrayBytes(self.address + begin, size, self.device)


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """The head of DLPack's DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("n_dimensions", ctypes.c_int32),
        ("data_type", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)


def bytes_of(array: Array | ArrayBytes) -> ArrayBytes:
    """The bytes of a contiguous array, or these bytes. The caller keeps the array while they are
    in use.

    Work that other streams do on the array is not waited for: it is the caller's to order.
    InvalidInput for an array that DLPack cannot share: a parameter of torch that has a gradient
    (give its `data`), or a type that DLPack lacks (give its view as bytes).
    """
    if isinstance(array, ArrayBytes):
        return array
    try:
        kind = int(array.__dlpack_device__()[0])
        capsule = (
            array.__dlpack__(stream=_NO_SYNCHRONISATION) if kind == CUDA else array.__dlpack__()
        )
    except (AttributeError, TypeError, BufferError, ValueError) as exc:
        raise InvalidInput(f"an array without DLPack, or one that it cannot share: {exc}") from exc
    tensor = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    shape = [tensor.shape[i] for i in range(tensor.n_dimensions)]
    count, stride = 1, 1
    for i in reversed(range(len(shape))):
        if tensor.strides and shape[i] > 1 and tensor.strides[i] != stride:
            raise InvalidInput("an array that is not contiguous: make it so first")
        stride *= shape[i]
        count *= shape[i]
    size = count * tensor.data_type.bits * tensor.data_type.lanes // 8
    address = (tensor.data or 0) + tensor.byte_offset
    return ArrayBytes(address, size, (tensor.device_type, tensor.device_id))
