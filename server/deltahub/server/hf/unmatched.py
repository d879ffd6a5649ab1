"""Advice for paths without a route: a model's name without namespace."""

from typing import Final

from deltahub.registry.names import quoted
from deltahub.server.connections.inner_paths import unescaped

_NAMES: Final = "names are NAMESPACE/NAME here"
# Parts that follow a model's name in paths of the Hugging Face API.
_OF_A_MODEL: Final = frozenset(
    "auth-check branch commit commits discussions like likers lfs-files paths-info preupload refs"
    " revision safetensors-metadata settings super-squash tag tree xet-read-token xet-write-token"
    " duplicate".split()
)


def without_namespace(path: str) -> str | None:
    """Return advice on names, for the path of a model without a namespace; else None."""
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "models"]:
        parts = parts[2:]
        is_meant = len(parts) == 1 or (len(parts) > 1 and parts[1] in _OF_A_MODEL)
    else:
        is_lfs = len(parts) > 2 and parts[1:3] == ["info", "lfs"]
        is_meant = is_lfs or (len(parts) > 2 and parts[1] == "resolve")
    if not is_meant or not parts[0]:
        return None
    name = unescaped(parts[0].removesuffix(".git"))
    return f"there is no model {quoted(name)}: {_NAMES}"
