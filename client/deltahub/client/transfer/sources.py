"""The adapter and the base that a kit is made for: where they lie, and what a hub calls them."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltahub.client.errors import HubError, InvalidArgument
from deltahub.client.hub import Hub
from deltahub.client.names import named_revision
from deltahub.methods.adapters.lora import CONFIG_FILE

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Source:
    """Two folders and their names. base_title: `namespace/name@commit`; adapter_title: the same,
    None for an adapter that no hub has yet.
    """

    adapter: Path
    base: Path
    adapter_title: str | None
    base_title: str


def find_source(
    adapter: str | Path, base: str | Path, base_name: str | None, hub: Hub | None
) -> Source:
    """Pull what is no folder. InvalidArgument if nobody knows what the hub calls the base."""
    if Path(adapter).is_dir() and Path(base).is_dir() and _has_commit(base_name):
        assert base_name is not None
        return Source(Path(adapter), Path(base), None, base_name)
    if hub is None:
        with Hub() as own:
            return _find(adapter, base, base_name, own)
    return _find(adapter, base, base_name, hub)


def _find(adapter: str | Path, base: str | Path, base_name: str | None, hub: Hub) -> Source:
    folder, title, declared = Path(adapter), None, None
    if not folder.is_dir():
        name, revision = named_revision(str(adapter))
        found = hub.revision(name, revision or "main")
        title = f"{name}@{found.commit}"
        if found.base.declared is not None and found.base.commit is not None:
            own_base = named_revision(found.base.declared)[0]
            declared = f"{own_base}@{found.base.commit}"
            if base_name is None and not Path(base).is_dir():
                _require_same(name, own_base, named_revision(str(base))[0], hub)
        folder = hub.pull(name, revision=found.commit)
    base_title = _base_title(folder, base, base_name or declared, hub)
    at = Path(base)
    if not at.is_dir():
        name, commit = named_revision(base_title)
        at = hub.pull(name, revision=commit or "main")
    return Source(folder, at, title, base_title)


def _require_same(adapter: str, own_base: str, base: str, hub: Hub) -> None:
    """InvalidArgument for another base than the adapter's: the hub would not take its kit."""
    # Either one may have been renamed.
    if hub.repository(base).name != hub.repository(own_base).name:
        raise InvalidArgument(
            f"the base of {adapter} is {own_base}, not {base}: make the kit on {own_base}"
        )


def _base_title(adapter: Path, base: str | Path, known: str | None, hub: Hub) -> str:
    """known: what the user or the hub says of the base, if anything."""
    given = known
    if not Path(base).is_dir():
        name, revision = named_revision(str(base))
        known_name = None if known is None else named_revision(known)[0]
        # The adapter's own commit of its base counts, unless another one is asked for.
        if revision is not None or known_name != name:
            given = str(base)
    given = given or _named_by(adapter)
    if given is None:
        raise InvalidArgument(
            "the base is a folder, and nothing says what the hub calls it: name it by base_name, as"
            " namespace/name"
        )
    if _has_commit(given):
        return given
    try:
        name, revision = named_revision(given)
        return f"{name}@{hub.revision(name, revision or 'main').commit}"
    except HubError as exc:
        raise InvalidArgument(
            f"the hub does not say which commit of {given} the base is ({exc.message}): push the"
            " base first, or name it by base_name, as namespace/name@commit"
        ) from exc


def _named_by(adapter: Path) -> str | None:
    """`namespace/name` in the adapter's configuration, if it looks like a name of a hub."""
    try:
        given = json.loads((adapter / CONFIG_FILE).read_bytes())
        name = given.get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        return None
    return name if isinstance(name, str) and re.fullmatch(r"[^\s/@]+/[^\s/@]+", name) else None


def _has_commit(name: str | None) -> bool:
    return name is not None and _COMMIT.fullmatch(name.partition("@")[2]) is not None
