"""Modes of a processor's float arithmetic: rounding and subnormal numbers."""

import ctypes
import ctypes.util
from collections.abc import Iterator
from contextlib import contextmanager

# Bits of MXCSR, the control register of an x86 processor's vector units.
MODES = {
    "flush to zero": 0x8000,
    "denormals are zero": 0x40,
    "down": 0x2000,
    "up": 0x4000,
    "to zero": 0x6000,
}
LIBM = ctypes.CDLL(ctypes.util.find_library("m"))
MXCSR = slice(28, 32)  # its place in glibc's fenv_t on x86-64


@contextmanager
def in_mode(mode: str) -> Iterator[None]:
    """Sets the mode in this thread: another rounding, or subnormal numbers count as zero."""
    usual = ctypes.create_string_buffer(MXCSR.stop)
    assert LIBM.fegetenv(usual) == 0
    changed = bytearray(usual.raw)
    word = int.from_bytes(changed[MXCSR], "little") | MODES[mode]
    changed[MXCSR] = word.to_bytes(4, "little")
    assert LIBM.fesetenv(bytes(changed)) == 0
    try:
        yield
    finally:
        assert LIBM.fesetenv(usual) == 0
