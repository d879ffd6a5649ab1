"""Pictures of pages for docs/dashboard.md, small enough for a repository."""

import os
import struct
import zlib
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Final

import numpy as np
from playwright.sync_api import Page

ROOT: Final = Path(__file__).resolve().parents[3]
DOC: Final = ROOT / "docs" / "dashboard.md"
# A page that is longer is cut off here; a shorter one has no empty space below.
_MOST_HEIGHT: Final = 900
_LEAST_HEIGHT: Final = 320
_COLOURS: Final = 256
# Decodes a PNG: the browser can, and no package that the tests install does.
_PIXELS: Final = """async (url) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const {width, height} = image;
    const context = new OffscreenCanvas(width, height).getContext("2d");
    context.drawImage(image, 0, 0);
    const bytes = new Blob([context.getImageData(0, 0, width, height).data]);
    const reader = new FileReader();
    await new Promise((done) => { reader.onload = done; reader.readAsDataURL(bytes); });
    return [width, height, reader.result.split(",")[1]];
}"""


def take_picture(page: Page, name: str) -> None:
    """Take a picture if DELTAHUB_PICTURES names a folder: there, of what docs/dashboard.md shows.

    DELTAHUB_ALL_PICTURES=1 takes one of every page, at both widths and in both themes.
    """
    folder = os.environ.get("DELTAHUB_PICTURES")
    is_shown = f"pictures/{name}.png" in DOC.read_text()
    if not folder or not (is_shown or os.environ.get("DELTAHUB_ALL_PICTURES")):
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / f"{name}.png"
    if not is_shown:
        page.screenshot(path=path, full_page=True)
        return
    before = page.viewport_size
    assert before is not None
    # A window as low as can be has no space below the page's end, so that its height is the page's.
    page.set_viewport_size({**before, "height": _LEAST_HEIGHT})
    height: int = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({**before, "height": min(height, _MOST_HEIGHT)})
    picture = page.screenshot()
    page.set_viewport_size(before)
    path.write_bytes(_with_palette(page, picture))


def _with_palette(page: Page, picture: bytes) -> bytes:
    """The same picture with a byte for each pixel, which is less than half of the file.

    A page has some hundred colours, most of them at the edges of letters. The rarest become the
    nearest of the others.
    """
    blank = page.context.new_page()  # the policy of the hub's own pages would allow no script
    url = f"data:image/png;base64,{b64encode(picture).decode()}"
    width, height, encoded = blank.evaluate(_PIXELS, url)
    blank.close()
    pixels = np.frombuffer(b64decode(encoded), np.uint8).reshape(-1, 4)[:, :3]
    colours, places, counts = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    palette = colours[np.argsort(-counts, kind="stable")[:_COLOURS]]
    differences = colours[:, None].astype(np.int64) - palette[None].astype(np.int64)
    nearest = (differences**2).sum(axis=2).argmin(axis=1).astype(np.uint8)
    lines = nearest[places.reshape(height, width)]
    # Before each line stands the number of its filter: 0, none.
    data = np.pad(lines, ((0, 0), (1, 0))).tobytes()
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
        + _chunk(b"PLTE", palette.tobytes())
        + _chunk(b"IDAT", zlib.compress(data, 9))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
