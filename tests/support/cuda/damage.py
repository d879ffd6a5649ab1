"""Frames with damaged streams whose guards match, and what the native core says of them."""

from deltahub.codecs import BlockMode, Buffer, CodecError
from deltahub.codecs.blocks import GUARD_BYTES, guard
from support.codecs.coded_frames import CodedFrame
from support.cuda.decoding import Opened, decode_opened, opened
from support.cuda.kernels import EmulatedDevice

Outcome = tuple[str, str | bytes]  # an error's code and words, or "ok" and the decoded bytes


def native_outcome(frame: Opened, base: Buffer | None) -> Outcome:
    view, body = frame
    out = bytearray(view.header.size_bytes)
    try:
        view.decode_into(0, view.header.n_blocks, body, base, memoryview(out))
    except CodecError as exc:
        return exc.code, str(exc)
    return "ok", bytes(out)


def emulated_outcome(frame: Opened, base: Buffer | None, seed: int) -> Outcome:
    try:
        return "ok", decode_opened(EmulatedDevice(seed), [frame], [base])[0]
    except CodecError as exc:
        return exc.code, str(exc)


def with_stream(case: CodedFrame, index: int, stream: bytes) -> Opened:
    """The frame whose coded block `index` has another stream of the same length."""
    view, body = opened(case)
    begin, end = view.blocks.stored_span(index, index + 1)
    stored = guard(stream) + stream
    assert len(stored) == end - begin
    return view, b"".join([body[:begin], stored, body[end:]])


def coded_blocks(case: CodedFrame) -> list[int]:
    return [i for i, mode in enumerate(case.body.blocks.modes) if mode == BlockMode.CODED]


def stream_of(case: CodedFrame, index: int) -> bytes:
    return [stored for _, stored in case.body.blocks][index][GUARD_BYTES:]
