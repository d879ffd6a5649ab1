"""The worked example on every format page is what it says, byte for byte."""

import re
from pathlib import Path

import numpy as np
import pytest

from deltahub.codecs import (
    BY_ID,
    DType,
    Literal,
    Recipe,
    decode_frame,
    encode_frame,
    parse_header,
    read_index,
    split_frames,
    tensor_id,
    verify_pack_hash,
)
from deltahub.codecs._native import FmDeltaEncoder, decode_mask
from deltahub.codecs.exports import metadata as export_metadata
from deltahub.codecs.exports.coding import coding
from deltahub.codecs.files.recipe import RECIPE_VERSION
from deltahub.codecs.frames import TensorSpec
from deltahub.codecs.frames.header import FRAME_VERSION
from deltahub.codecs.frames.pack import PACK_VERSION
from deltahub.codecs.masks.codec import PACKED, SCALE
from deltahub.codecs.reference import fm_delta, masks, neuzip, neuzip_lossless
from deltahub.codecs.reference.bits import BitReader
from deltahub.codecs.reference.coder import (
    N_LANES,
    Coder,
    Context,
    ValueSequence,
    read_table,
    unguarded,
)
from deltahub.codecs.reference.fm_delta_model import ALPHABET
from deltahub.codecs.reference.prediction import predicted
from deltahub.codecs.reference.words import Words
from deltahub.codecs.words import WORD_KINDS
from support.codecs.exports import coded, frames_of, opened
from support.codecs.kernels import delta_outcome

SPEC = Path(__file__).parents[2] / "codecs" / "spec"
VERSIONS = {
    "frame": FRAME_VERSION,
    "pack": PACK_VERSION,
    "recipe": RECIPE_VERSION,
    "coder": 1,
    "neuzip": export_metadata.VERSION,
    **{codec.codec_id: codec.version for codec in BY_ID.values()},
}


def page(name: str) -> str:
    return (SPEC / f"{name}.md").read_text()


def hex_block(name: str, info: str) -> bytes:
    """The bytes of the page's one fenced block with this info string; comments begin with ;"""
    (block,) = re.findall(rf"^```{info}\n(.*?)^```", page(name), re.DOTALL | re.MULTILINE)
    return bytes.fromhex("".join(line.split(";")[0] for line in block.splitlines()))


@pytest.mark.parametrize("name", ["frame", "raw", "zstd"])
def test_the_frame_on_the_page_decodes_to_what_the_page_says(name: str) -> None:
    frame, decoded = hex_block(name, "hex"), hex_block(name, "decoded")
    out = bytes(decode_frame(frame))
    assert out == decoded * (len(out) // len(decoded))
    header = parse_header(frame)
    assert header.tensor == tensor_id(out)
    spec = TensorSpec(header.tensor, header.dtype, header.rows, header.columns)
    (part,) = split_frames(spec)
    if name != "zstd":  # another release of the zstd library may find another form
        assert encode_frame(spec, part, out, codec=header.codec) == frame


def test_the_pack_on_the_page_holds_the_frame_of_the_other_page() -> None:
    pack = hex_block("pack", "hex")
    verify_pack_hash([pack])
    (entry,) = read_index(lambda offset, length: pack[offset : offset + length], len(pack))
    assert pack[entry.offset : entry.offset + entry.length] == hex_block("frame", "hex")


def test_the_recipe_on_the_page_is_the_one_described() -> None:
    data = hex_block("recipe", "hex")
    recipe = Recipe.from_bytes(data)
    literal, tensor = recipe.segments
    assert isinstance(literal, Literal)
    assert literal.data == b"\1"
    assert (tensor, *recipe.tensors()) == (recipe.tensors()[0],) * 2
    assert recipe.tensors()[0].tensor == tensor_id(b"tensors!")
    text = page("recipe")
    assert recipe.id.hex() in text
    assert data[12 : 12 + data[8]].decode() in text


def table(name: str, header: str) -> list[list[str]]:
    """The cells of the page's one table whose header begins so, row by row."""
    (rows,) = re.findall(rf"^\| {header} \|.*\n\|[-:|]+\|\n((?:\|.*\n)*)", page(name), re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]


def total(cell: str) -> int:
    """What a cell such as `-4 + 3` comes to."""
    return sum(int(part) for part in cell.split(" + "))


def follow(coder: Coder, steps: list[list[str]]) -> bytes:
    """The stream that a table tells of: lane, state, symbol, raw digits, digits, ..., next state.

    A lane's state is the one in which its number before left it; at last all are in state 0.
    """
    first, now, digits = [0] * N_LANES, [-1] * N_LANES, ""
    for lane, state, symbol, raw, low, *_, after in steps:
        i = int(lane)
        if now[i] == -1:
            first[i] = now[i] = int(state)
        assert now[i] == int(state)
        assert any(table.states[now[i]].symbol == int(symbol) for table in coder.tables)
        now[i] = total(after)
        digits += raw + low
    assert max(now) == 0
    text = "1" + "".join(f"{state:0{coder.table_log}b}" for state in first) + digits
    return int(text, 2).to_bytes((len(text) + 7) // 8, "little")


def test_the_streams_of_the_coders_page_are_those_of_its_tables() -> None:
    reader = BitReader(hex_block("coder", "table"))
    coder = Coder(ALPHABET, (read_table(reader, 7, ALPHABET),))
    assert reader.take_rest() == b""
    assert coder.tables[0].frequencies == (1, 1, 60, 40, 26, *[0] * 77)
    steps = table("coder", "sequence")
    numbers = [total(step[6]) for step in steps]
    stream = hex_block("coder", "stream")
    assert follow(coder, [step[1:] for step in steps]) == stream
    sequences = [
        ValueSequence(16, [Context(0, shift)] * n, numbers[at : at + n])
        for shift, at, n in ((2, 0, 6), (0, 6, 3))
    ]
    assert coder.encode(sequences) == stream
    opened = coder.open(stream)
    for sequence in sequences:
        assert opened.take_sequence(16, sequence.contexts) == sequence.values
    opened.finish()


def test_the_block_of_the_fm_delta_page_decodes_to_what_the_page_says() -> None:
    prelude, block = hex_block("fm_delta", "prelude"), hex_block("fm_delta", "block")
    base, decoded = hex_block("fm_delta", "base"), hex_block("fm_delta", "decoded")
    model = fm_delta.parse_prelude(Words.of(DType.BF16), 2, 4, prelude)
    assert fm_delta.write_prelude(model) == prelude
    shape = fm_delta.BlockShape(2, 4)
    assert fm_delta.decode_block(model, block, base, shape) == decoded
    sides = fm_delta.SideValues(scales=(0, 1), left=((2, 0),))
    assert fm_delta.encode_block(model, decoded, base, shape, sides) == block

    steps = table("fm_delta", "sequence")
    assert follow(model.coder, [step[1:] for step in steps]) == unguarded(block)
    numbers = [total(step[6]) for step in steps]
    sequences = fm_delta.block_sequences(model, decoded, base, shape, sides)
    assert numbers == [number for sequence in sequences for number in sequence.values]
    words, elements = model.words, table("fm_delta", "row")
    assert [int(element[1], 16) for element in elements] == words.read(base)
    assert [int(element[8], 16) for element in elements] == words.read(decoded)
    expected = list(fm_delta.expectations(model, words.read(base), shape, sides))
    assert [int(element[4], 16) for element in elements] == [word for word, _ in expected]
    assert [model.classes[int(element[6])] for element in elements] == [c for _, c in expected]
    assert [int(element[7]) for element in elements] == sequences[-1].values
    stream = bytes(unguarded(block))
    assert delta_outcome(DType.BF16, (2, 4), prelude, stream, base, shape) == decoded


def test_the_block_of_version_2_decodes_to_what_the_fm_delta_page_says() -> None:
    prelude, block, base, decoded = (
        hex_block("fm_delta", f"{name} 2") for name in ("prelude", "block", "base", "decoded")
    )
    model = fm_delta.parse_prelude(Words.of(DType.F32), 1, 4, prelude, 2)
    assert fm_delta.write_prelude(model) == prelude
    shape = fm_delta.BlockShape(1, 4)
    assert fm_delta.decode_block(model, block, base, shape) == decoded
    assert fm_delta.encode_block(model, decoded, base, shape) == block
    (sequence,) = fm_delta.block_sequences(model, decoded, base, shape, fm_delta.SideValues())
    words = model.words
    rows = table("fm_delta", "base word")
    for row, near, word, number in zip(
        rows, words.read(base), words.read(decoded), sequence.values, strict=True
    ):
        moved = words.apply(near, number << model.zero_bits)
        assert row == [f"{near:08x}", str(number), f"{moved:08x}", f"{word:08x}"]
    stream = bytes(unguarded(block))
    assert delta_outcome(DType.F32, (1, 4), prelude, stream, base, shape, 2) == decoded


def test_predictions_are_what_the_fm_delta_page_says() -> None:
    shape = fm_delta.BlockShape(8, 64)
    words = Words.of(DType.BF16)
    for word, product, c0, result, _ in table("fm_delta", "p"):
        assert predicted(words, int(word, 16), int(product), int(c0)) == int(result, 16)
        # And the kernels: a frame of this word alone, whose products are all this one.
        whole, rest = divmod(int(product), 1 << 14)
        quarters = [(whole + part) // 4 for part in range(4)]
        right = np.array([*quarters, rest], "<i2")[:, None].repeat(64, 1).tobytes()
        left = np.array([1 << 14] * 4 + [1], "<i2")[None].repeat(8, 0).tobytes()
        base, source = (np.full(8 * 64, int(each, 16), "<u2") for each in (word, result))
        source[0] ^= 1  # no block is coded that is like its base
        pair = source.tobytes(), base.tobytes()
        kind = WORD_KINDS[DType.BF16]
        encoder = FmDeltaEncoder(kind, *pair, 8, 64, 3, left, right, int(c0), False)
        stream = encoder.encode(*pair, 0, 0, 8, 64)
        frame = 8, 64
        assert delta_outcome(DType.BF16, frame, encoder.prelude, stream, pair[1], shape) == pair[0]


def test_the_block_of_the_neuzip_page_decodes_to_what_the_page_says() -> None:
    prelude, block, decoded = (
        hex_block("neuzip_lossless", name) for name in ("prelude", "block", "decoded")
    )
    model = neuzip_lossless.parse_prelude(Words.of(DType.BF16), prelude)
    assert neuzip_lossless.write_prelude(model) == prelude
    assert neuzip_lossless.decode_block(model, block, 8) == decoded
    assert neuzip_lossless.encode_block(model, decoded) == block
    rows = table("neuzip_lossless", "lane")
    assert follow(model.coder, rows) == unguarded(block)
    words = [int(row[6], 16) for row in rows]
    assert words == model.words.read(decoded)
    assert [total(row[5]) for row in rows] == [model.value(word) for word in words]


def test_the_block_of_the_masks_page_decodes_to_what_the_page_says() -> None:
    base, unified, decoded = (hex_block("masks", name) for name in ("base", "unified", "decoded"))
    (scale,) = SCALE.unpack(hex_block("masks", "prelude"))
    block = hex_block("masks", "block")
    form, bits = unguarded(block)[0], unguarded(block)[1:]
    assert form == PACKED
    assert masks.decode(DType.BF16, base, unified, bits, scale) == decoded
    out = bytearray(len(decoded))
    decode_mask(WORD_KINDS[DType.BF16], base, unified, bits, scale, out)
    assert out == decoded
    for i, row in enumerate(table("masks", "element")):
        words = [each[2 * i : 2 * i + 2][::-1].hex() for each in (base, unified, decoded)]
        assert [row[1].split()[0], row[2].split()[0], row[6]] == words


def test_the_weight_of_the_exports_page_is_rounded_and_decodes_to_what_the_page_says() -> None:
    how, form = coding(DType.BF16, 3, 8, [1]), neuzip.Form(DType.BF16, 8)
    (text,) = re.findall(r"^```json\n(.*)\n```", page("neuzip"), re.MULTILINE)
    assert export_metadata.parse_metadata({"neuzip": text}) == {"w": ((2, 5), how)}
    assert export_metadata.export_metadata({"w": ((2, 5), how)})["neuzip"] == text

    original, scales, words, m3 = (
        hex_block("neuzip", name) for name in ("original", "scales", "words", "m3")
    )
    parts = opened(how, frames_of(how, original)[0], 10)
    assert {name: bytes(part.decoded()) for name, part in parts.items()} == {
        "words": words, "scales": scales, "m3": m3
    }  # fmt: skip
    assert neuzip.scales_of(form, original) == scales
    rounded = neuzip.round_words(form, original, 3, scales)
    assert neuzip.pack(form, rounded, 4, 2) == m3
    at_3, at_1 = hex_block("neuzip", "decoded"), hex_block("neuzip", "decoded 1")
    assert coded(how, original) == neuzip.decode(form, words, {(4, 2): m3}, 0, scales) == at_3
    fill = neuzip.fill_of(form, 3, 1)
    assert f"F = 3 x 2^3 = {fill:x} (hex)" in page("neuzip")
    assert coded(how, original, 1) == neuzip.decode(form, words, {}, fill, scales) == at_1

    for i, row in enumerate(table("neuzip", "element")):
        each = [data[2 * i : 2 * i + 2][::-1].hex() for data in (original, rounded, words)]
        assert [row[1].split()[0], row[2].split()[0], row[3]] == each
        assert int(row[4], 2) == (int(each[1], 16) >> 4) % 4
        assert [row[5], row[6]] == [data[2 * i : 2 * i + 2][::-1].hex() for data in (at_3, at_1)]


@pytest.mark.parametrize("name", list(VERSIONS))
def test_a_page_has_all_its_parts_and_a_row_for_its_version(name: str) -> None:
    text = page(name)
    numbers = [int(number) for number in re.findall(r"^## (\d)\.", text, re.MULTILINE)]
    assert numbers == [1, 2, 3, 4, 5, 6]
    versions = text[text.index("\n## 6.") :]
    assert re.search(rf"^\| *{VERSIONS[name]} *\|", versions, re.MULTILINE)
    assert f"[{name}.md]({name}.md)" in page("README")
