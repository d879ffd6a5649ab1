"""The errors of the codecs. Every class has a stable `code`, which the API sends to the SDK.

CodecError
 |- InvalidInput          wrong arguments of the caller; never a fault of stored bytes
 |   |- WrongKernels       DELTAHUB_KERNELS names kernels that this processor cannot run
 |   |- NoGpu              decoding on a GPU without one, or without its packages
 |- CorruptFrame          bytes that no encoder of DeltaHub wrote, or that changed since
 |- UnsupportedVersion    written by a newer release
 |- UnknownCodec          a codec number or name that this release does not have
 |- WrongBase             a delta without its base, or with a base of another size
 |- CorruptPack           a pack whose index, trailer or hash is wrong
 |- CorruptRecipe         a recipe that is not in its canonical form
 |- InvalidSafetensors    a safetensors header that its format forbids
 |- TooLarge              above a limit of the format
"""

from typing import ClassVar


def how_to_install(extra: str) -> str:
    """What to run for the packages of an extra. No package index has DeltaHub yet."""
    return f'in a checkout of DeltaHub, run pip install ".[{extra}]"'


class CodecError(Exception):
    """The root class. `code` is the API's name of the error."""

    code: ClassVar[str] = "codec_error"

    @property
    def message(self) -> str:
        return str(self)


class InvalidInput(CodecError):
    code = "invalid_input"


class WrongKernels(InvalidInput):
    """The environment names kernels that this processor cannot run."""


class NoGpu(InvalidInput):
    """This machine lacks a GPU, or the packages that decode on one."""


class CorruptFrame(CodecError):
    """Bytes that no encoder of DeltaHub wrote."""

    code = "corrupt_frame"


class UnsupportedVersion(CodecError):
    code = "unsupported_version"


class UnknownCodec(CodecError):
    code = "unknown_codec"


class WrongBase(CodecError):
    code = "wrong_base"


class CorruptPack(CodecError):
    code = "corrupt_pack"


class CorruptRecipe(CodecError):
    code = "corrupt_recipe"


class InvalidSafetensors(CodecError):
    code = "invalid_safetensors"


class TooLarge(CodecError):
    code = "too_large"
