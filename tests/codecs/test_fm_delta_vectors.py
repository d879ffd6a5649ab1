"""The page's example, and bytes kept on file, decode to what they always did or stay refused."""

import json
from pathlib import Path

import pytest

from deltahub.codecs import CodecError, DType, FrameView, decode_frame
from deltahub.codecs._native import FmDeltaDecoder
from deltahub.codecs.fm_delta import WORD_KINDS, FmDelta
from deltahub.codecs.fm_delta_reference import Words, decode_block, encode_block, parse_prelude
from support.spec_pages import hex_block

VECTORS = sorted((Path(__file__).parents[1] / "vectors" / "fm_delta").glob("v*/*.json"))


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_vector(path: Path) -> None:
    vector = json.loads(path.read_text())
    frame, base = bytes.fromhex(vector["frame"]), bytes.fromhex(vector["base"])
    if vector["expect"] == "ok":
        header = FrameView.parse(frame).header
        assert (header.codec, f"v{header.codec_version}") == ("fm_delta", path.parent.name)
        assert decode_frame(frame, base) == bytes.fromhex(vector["raw"])
        return
    with pytest.raises(CodecError) as error:
        decode_frame(frame, base)
    assert error.value.code == vector["expect"]


def test_there_are_good_and_bad_vectors_of_this_version() -> None:
    ours = [path for path in VECTORS if path.parent.name == f"v{FmDelta.version}"]
    assert {json.loads(path.read_text())["expect"] for path in ours} == {"ok", "corrupt_frame"}


def test_the_example_on_the_page_is_what_it_says() -> None:
    prelude, base, stream, decoded = (
        hex_block("fm_delta", info) for info in ("prelude", "base", "stream", "decoded")
    )
    words = Words.of(DType.BF16)
    model = parse_prelude(prelude, words)
    assert [(context.first_key, context.shift) for context in model.contexts] == [(0, 2), (125, 0)]
    assert decode_block(words, model, stream, base) == decoded
    assert encode_block(words, model, decoded, base) == stream
    out = bytearray(len(base))
    FmDeltaDecoder(WORD_KINDS[DType.BF16], prelude).decode(stream, base, out)
    assert out == decoded
