"""Codes one weight of a model, a slice at a time, and measures what it loses."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from math import prod
from typing import IO

from deltahub.codecs._native import count_infinite
from deltahub.codecs.exports.coding import AnyCoding, lossless
from deltahub.codecs.exports.file import part_name
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.codecs.frames.encode import encode_frame, split_frames, tensor_spec
from deltahub.codecs.words import WORD_KINDS
from deltahub.methods.exporting.entquant import Encoding, coding_of, encode_words
from deltahub.methods.exporting.loss import Loss
from deltahub.methods.exporting.report import ExportedWeight, error_bound
from deltahub.registry.packs.encoder_generation import generation_of
from deltahub.registry.results.inputs import InputTensor
from deltahub.registry.results.tensors import MEMORY_BYTES, UNNAMED, MadePack, MadeTensor
from deltahub.workers.compute.context import ComputeContext


def slices_of(context: ComputeContext, tensor: InputTensor, how: AnyCoding) -> Iterator[memoryview]:
    """The elements of a tensor, a slice at a time."""
    size = how.dtype.itemsize
    step = how.slice_elements * size
    for begin in range(0, tensor.ref.size, step):
        words = memoryview(bytearray(min(step, tensor.ref.size - begin)))
        context.reader.read_tensor_into(tensor.row, begin, words)
        yield words


def is_finite(context: ComputeContext, tensor: InputTensor, how: AnyCoding) -> bool:
    """Whether no element is infinite or NaN; such a weight is kept lossless."""
    kind = WORD_KINDS[how.dtype]
    return not any(count_infinite(kind, words) for words in slices_of(context, tensor, how))


def code_weight(
    context: ComputeContext,
    pack: MadePack,
    tensor: InputTensor,
    encoding: Encoding,
    progress: Callable[[int], None],
) -> tuple[list[dict[str, object]], ExportedWeight]:
    """Add a weight's parts to the pack; they as plain JSON for `made_ref`, and what is told of the
    weight. progress(bytes of the weight that are coded).
    """
    how = coding_of(encoding)
    is_whole = how.is_lossless and len(how.levels) == 1
    is_special = not is_whole and not is_finite(context, tensor, how)
    if is_special:
        encoding = how = lossless(how.dtype)
    name, loss, done = str(tensor.ref.name), Loss(), 0
    with ExitStack() as open_files:
        spools = {
            part: open_files.enter_context(
                tempfile.SpooledTemporaryFile(MEMORY_BYTES, dir=str(context.registry.scratch))
            )
            for part in how.parts
        }
        for words in slices_of(context, tensor, how):
            frames, decoded = encode_words(encoding, words, context.threads)
            loss.add(how, words, decoded)
            for part, frame in frames.items():
                spools[part].write(frame)
            done += len(words)
            progress(done)
        made = [
            _stored(context, pack, spool, part_name(name, part)) for part, spool in spools.items()
        ]
    bound, is_integers = error_bound(how), isinstance(how, IntegerCoding)
    coded_bytes = sum(int(str(each["size"])) for each in made)
    told = ExportedWeight(
        name=name,
        method="entquant" if is_integers else "neuzip",
        dtype=how.dtype.name,
        shape=tensor.ref.shape,
        bits=None if is_integers else how.bits,
        levels=() if is_integers else how.levels,
        element_bits=8 * coded_bytes / prod(tensor.ref.shape),
        block=how.block,
        plain_bytes=tensor.ref.size,
        coded_bytes=coded_bytes,
        # The largest numbers of the dtype may change by more than rounding does.
        bound=None if bound is None else max(bound, loss.largest),
        error=loss.error,
        largest=loss.largest,
        is_special=is_special,
    )
    return made, told


def _stored(
    context: ComputeContext, pack: MadePack, spool: IO[bytes], name: str
) -> dict[str, object]:
    """A part as a tensor of bytes in the store."""
    size = spool.tell()
    spool.seek(0)
    effort = context.registry.settings.effort
    spec = tensor_spec(UNNAMED, "U8", (size,))
    with MadeTensor(context.registry) as made:
        for each in split_frames(spec):
            data = memoryview(spool.read(each.count))
            # Entropy coded already, or bits that have none to spare.
            made.add(encode_frame(spec, each, data, codec="raw", threads=context.threads), data)
        content = pack.add(made, generation_of(effort))
    return {"name": name, "dtype": "U8", "shape": [size], "content": content.hex(), "size": size}
