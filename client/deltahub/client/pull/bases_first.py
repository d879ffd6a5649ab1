"""Whether it moves fewer bytes to pull the models that a revision is stored as differences from.

A fine-tune whose base is not on this machine can come whole, or as the base's frames and its own.
The base then stays in the Hugging Face cache, so that the next fine-tune costs its difference.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from deltahub.client.api.endpoints import Api
from deltahub.client.api.recipes import StoredRecipe, read_recipe
from deltahub.client.errors import Forbidden, NotFound, NotReady
from deltahub.client.local.tensor_sources import Sources
from deltahub.client.names import is_repository_name
from deltahub.client.records import Entry, PlannedTensor, Revision


@dataclass(frozen=True)
class BasePull:
    """Files of a revision that are pulled first."""

    name: str
    commit: str
    paths: frozenset[str]


@dataclass(frozen=True)
class Bases:
    """What is pulled first, in this order.

    difference, bases: the bytes that the model and its bases then take. without: the bytes of the
    model alone.
    """

    pulls: tuple[BasePull, ...]
    difference: int
    bases: int
    without: int


@dataclass(frozen=True)
class _File:
    """A file of a base, and how the hub stores its tensors."""

    order: int
    name: str
    commit: str
    entry: Entry
    stored: Mapping[bytes, PlannedTensor]


def find_bases(
    api: Api,
    sources: Sources,
    name: str,
    found: Revision,
    recipes: Iterable[StoredRecipe],
    siblings: int = 1,
) -> Bases | None:
    """The bases to pull first; None if that moves no fewer bytes, or they cannot be had.

    recipes: of the files that are missing. siblings: models of one base that are pulled together,
    which share what it costs. Bases are looked for in the declared base, in the repository's own
    `main`, and in the parent revision.
    """
    wanted = {tensor: stored for each in recipes for tensor, stored in each.stored.items()}
    sources.look_up(wanted)
    missing = {tensor: stored for tensor, stored in wanted.items() if tensor not in sources}
    outside = _bases_of(missing.values()) - missing.keys()
    sources.look_up(outside)
    if all(base in sources for base in outside):
        return None
    files = list(_files_of_bases(api, name, found))
    holders = {tensor: file for file in reversed(files) for tensor in file.stored}
    sources.look_up(holders)
    needed = {base for base in outside if base not in sources and base in holders}
    for base in list(needed):  # what the bases themselves are differences from
        needed |= _chain(base, holders, sources)
    chosen = {id(holders[base]): holders[base] for base in needed}
    there = {tensor for file in chosen.values() for tensor in file.stored}
    without = _cost(missing, missing.keys(), sources)
    cost = _cost(missing, there | missing.keys(), sources)
    fetched = {
        tensor: stored
        for file in chosen.values()
        for tensor, stored in file.stored.items()
        if tensor not in sources
    }
    of_bases = _cost(fetched, there, sources)
    if not chosen or cost + of_bases / siblings >= without:
        return None
    return Bases(tuple(_pulls(chosen.values())), cost, of_bases, without)


def count_siblings(api: Api, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """(name, revision) of each model -> how many of them declare its base."""
    bases = {}
    for name, revision in wanted:
        base = api.get_revision(name, revision).base
        bases[name, revision] = (base.declared or "").partition("@")[0], base.commit
    counts = Counter(bases.values())
    return {model: counts[base] if base[0] else 1 for model, base in bases.items()}


def _pulls(files: Iterable[_File]) -> Iterator[BasePull]:
    grouped: dict[tuple[int, str, str], set[str]] = {}
    for file in files:
        grouped.setdefault((file.order, file.name, file.commit), set()).add(file.entry.path)
    for (_, name, commit), paths in sorted(grouped.items(), key=lambda item: item[0]):
        yield BasePull(name, commit, frozenset(paths))


def _files_of_bases(api: Api, name: str, found: Revision) -> Iterator[_File]:
    base = (found.base.declared or "").partition("@")[0]
    wanted: list[tuple[str, str | None]] = [(name, "main"), (name, found.parent)]
    if is_repository_name(base):
        wanted.insert(0, (base, found.base.commit))
    seen = {found.commit}
    for order, (model, revision) in enumerate(wanted):
        if revision is None:
            continue
        try:
            at = api.get_revision(model, revision)
        except (NotFound, Forbidden):
            continue
        if at.commit in seen:
            continue
        seen.add(at.commit)
        for entry in at.entries:
            if not entry.path.endswith(".safetensors") or entry.state != "ingested":
                continue
            try:
                stored = read_recipe(api, model, at.commit, entry).stored
            except (NotFound, NotReady):
                continue
            yield _File(order, model, at.commit, entry, stored)


def _bases_of(tensors: Iterable[PlannedTensor]) -> set[bytes]:
    return {bytes.fromhex(base) for stored in tensors for base in stored.bases}


def _chain(base: bytes, holders: Mapping[bytes, _File], sources: Sources) -> set[bytes]:
    """The tensors that this one needs and that are not here, as far as somebody holds them."""
    found: set[bytes] = set()
    left = [base]
    while left:
        tensor = left.pop()
        if tensor in found or tensor in sources or tensor not in holders:
            continue
        found.add(tensor)
        left += _bases_of([holders[tensor].stored[tensor]])
    return found


def _cost(tensors: Mapping[bytes, PlannedTensor], there: Iterable[bytes], sources: Sources) -> int:
    """Bytes that these tensors take, where the tensors `there` serve as bases."""
    held = set(there)
    total = 0
    for stored in tensors.values():
        can_decode = all(base in held or base in sources for base in _bases_of([stored]))
        total += min(stored.size, stored.encoded_size) if can_decode else stored.size
    return total
