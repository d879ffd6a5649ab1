"""The files that browsers load: named by their content, so that they are cached for ever."""

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

_FOLDER: Final = Path(str(files("deltahub.server.web") / "static"))
_TYPES: Final = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


class NotBuilt(RuntimeError):
    """The files that browsers load are missing from this installation."""

    def __init__(self) -> None:
        super().__init__(
            "the files that browsers load were not built: install the package again (`make install`"
            " or `pip install .`), which builds them by npm"
        )


@cache
def manifest() -> dict[str, str]:
    """Return the name of each file, with its hash, by its plain name. Raises NotBuilt."""
    try:
        found: dict[str, str] = json.loads((_FOLDER / "manifest.json").read_text())
    except FileNotFoundError as error:
        raise NotBuilt from error
    return found


def asset(name: str) -> str:
    """Return the path of a file, as pages name it."""
    return f"/-/assets/{manifest()[name]}"


async def get_asset(request: Request, name: str) -> Response:
    """Send a file, compressed if the browser takes that."""
    if name not in manifest().values():
        return PlainTextResponse("there is no such file", 404)
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable",
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }
    path = _FOLDER / name
    if "gzip" in request.headers.get("accept-encoding", ""):
        path = _FOLDER / f"{name}.gz"
        headers["Content-Encoding"] = "gzip"
    return FileResponse(path, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])
