"""The worked example on every format page is what it says, byte for byte."""

import re
from pathlib import Path

import pytest

from deltahub.codecs import (
    BY_ID,
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
from deltahub.codecs.frame import TensorSpec
from deltahub.codecs.frame_header import FRAME_VERSION
from deltahub.codecs.pack import PACK_VERSION
from deltahub.codecs.recipe import RECIPE_VERSION

SPEC = Path(__file__).parents[2] / "codecs" / "spec"
VERSIONS = {
    "frame": FRAME_VERSION,
    "pack": PACK_VERSION,
    "recipe": RECIPE_VERSION,
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


@pytest.mark.parametrize("name", list(VERSIONS))
def test_a_page_has_all_its_parts_and_a_row_for_its_version(name: str) -> None:
    text = page(name)
    numbers = [int(number) for number in re.findall(r"^## (\d)\.", text, re.MULTILINE)]
    assert numbers == [1, 2, 3, 4, 5, 6]
    versions = text[text.index("\n## 6.") :]
    assert re.search(rf"^\| *{VERSIONS[name]} *\|", versions, re.MULTILINE)
    assert f"[{name}.md]({name}.md)" in page("README")
