"""What the codecs refuse. Every class has a stable `code` that the API sends and the SDK maps back.

CodecError
 |- InvalidInput          the caller's arguments do not fit; never the fault of stored bytes
 |   |- WrongKernels       DELTAHUB_KERNELS asks for what this processor cannot run
 |- CorruptFrame          bytes that no encoder of ours wrote, or bytes that changed since
 |- UnsupportedVersion    written by a newer release
 |- UnknownCodec          a codec number or name that this release does not have
 |- WrongBase             a delta without its base, or with a base of another size
 |- CorruptPack           a pack whose index, trailer or hash does not check
 |- CorruptRecipe         a recipe that is not in its one canonical form
 |- InvalidSafetensors    a safetensors header that its format forbids
 |- TooLarge              more than a limit of the format allows
"""

from typing import ClassVar


class CodecError(Exception):
    """The root. `code` is the wire name; the message names the thing, the limit, the way out."""

    code: ClassVar[str] = "codec_error"


class InvalidInput(CodecError):
    code = "invalid_input"


class WrongKernels(InvalidInput):
    """The environment asks for kernels that this processor cannot run."""


class CorruptFrame(CodecError):
    """Bytes that no encoder of ours wrote."""

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
