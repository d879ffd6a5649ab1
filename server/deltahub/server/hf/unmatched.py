"""Advice for paths without a route: a model's name without namespace, or a web page."""

from typing import Final

from deltahub.registry.errors import InvalidName
from deltahub.registry.names import RESERVED_NAMESPACES, quoted, split_name
from deltahub.server.hf.dispatch import PAGES, unescaped

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


def page(path: str) -> str | None:
    """Return advice on what shows the same, for the path of a web page; else None."""
    parts = [unescaped(part) for part in path.strip("/").split("/")]
    name = "/".join(parts[:2])
    try:
        split_name(name)
    except InvalidName:
        return None
    if parts[0] in RESERVED_NAMESPACES:
        return None
    kind, revision, *below = (*parts[2:], "", "")[: max(len(parts) - 2, 2)]
    if kind and kind not in PAGES:
        return None
    at = f"{name}@{revision[:200]}" if revision else name
    shown = f"`deltahub info {at}` shows files and what they store"
    if kind == "tree":
        shown = f"`deltahub ls {at}` lists the files"
    elif kind in ("blob", "raw") and below:
        shown = f"the file is at /{name}/resolve/{revision}/{'/'.join(below)}"
    return f"this hub has no pages for people yet: {shown}"
