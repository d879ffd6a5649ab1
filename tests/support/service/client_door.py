"""Requests of our client, made by hand: a pack of frames against a base, and a recipe."""

import io

from deltahub.codecs.files.split import make_recipe, plan_file
from deltahub.codecs.frames import BasePlan, BaseSegment, encode_frame, split_frames
from deltahub.codecs.frames.pack import PackWriter
from deltahub.codecs.ids import tensor_id
from support.registry.opened import sha256_of


def pack_and_recipe(data: bytes, base: bytes) -> tuple[bytes, bytes]:
    """Return (pack, recipe) of a safetensors file, as deltas of another with the same layout."""
    plan = plan_file(lambda start, n: data[start : start + n], len(data), "m.safetensors")
    base_plan = plan_file(lambda start, n: base[start : start + n], len(base), "m.safetensors")
    bases = {piece.name: base[piece.start : piece.end] for piece in base_plan.tensor_pieces()}
    sink = io.BytesIO()
    writer = PackWriter(sink)
    ids = []
    for piece in plan.tensor_pieces():
        source = data[piece.start : piece.end]
        ids.append(tensor_id(source))
        if source == bases.get(piece.name):
            continue
        spec = piece.spec(ids[-1])
        (part,) = split_frames(spec)
        old = bases.get(piece.name)
        if old is None or piece.name is None:
            writer.add(encode_frame(spec, part, source, codec="zstd"))
            continue
        segment = BaseSegment(tensor_id(old), spec.dtype, 0, spec.count)
        plan_of_base = BasePlan((segment,), is_cast=False)
        writer.add(encode_frame(spec, part, source, old, plan_of_base, "fm_delta"))
    writer.finish()
    sha256 = bytes.fromhex(sha256_of(data))
    recipe = make_recipe(plan, sha256, ids, lambda start, n: data[start : start + n])
    return sink.getvalue(), recipe.to_bytes()
