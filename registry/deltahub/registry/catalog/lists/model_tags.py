"""The keys by which filters find models: tags of the head of main, bases, role, dtypes, size.

Keys are a superset of what a model's tags show: a base may be renamed or unreadable, and a page
compares the tags that it shows. So a wrong key costs time, and a missing one would hide a model.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from sqlalchemy import delete, insert, select

from deltahub.registry.access.caller import Caller
from deltahub.registry.access.permissions import allowed
from deltahub.registry.access.repositories import find_repository
from deltahub.registry.db.batches import batches
from deltahub.registry.db.models import LineageEdge, Repository, Revision
from deltahub.registry.db.session import ReadSession, WriteSession
from deltahub.registry.db.tables.lists import ModelTag, RevisionFacts
from deltahub.registry.errors import InvalidName

# The key of a repository whose head's facts nobody has written yet: every filter examines it.
UNKNOWN: Final = ""
# The relation in tags for bases that the hub measured from the weights; cards do not use it.
MEASURED: Final = "measured"
# A measured parent is shown as a base from this share of the weight bytes.
MIN_BASE_SHARE: Final = 0.5
_BASE: Final = "base_model:"
_ROLE: Final = "#role:"
_DTYPE: Final = "#dtype:"
Role = Literal["base", "finetune", "adapter", "kit", "merge", "quantized", "export"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
# The tag by which cards of init kits name them (methods/adapters/kit.py). A kit has the factors
# that adapters start from, and is stored as an adapter of its base, but it is no trained adapter.
_KIT_TAG: Final = "init-kit"
_MAX_KEY: Final = 250  # characters
_MAX_BITS: Final = 64


def move_main(session: WriteSession, repository: Repository, revision: Revision) -> None:
    """Note that main of the repository points at the revision now."""
    repository.head_id = revision.id
    session.flush()
    write_keys(session, revision.id)


def write_keys(session: WriteSession, revision_id: int) -> None:
    """Make the keys of a repository those of this revision, if it is the head of main.

    To be called when the head, its facts or its bases have changed.
    """
    revision = session.get_one(Revision, revision_id)
    repository = session.get_one(Repository, revision.repository_id)
    if repository.head_id != revision_id:
        return
    known = set(
        session.scalars(select(ModelTag.tag).where(ModelTag.repository_id == repository.id))
    )
    facts = session.get(RevisionFacts, revision_id)
    if facts is None:
        # The keys of the head before stay, because they are mostly those of this one.
        keys = known | {UNKNOWN}
    else:
        keys = _keys(session, revision, facts.facts)
    for batch in batches(known - keys):
        session.execute(
            delete(ModelTag).where(ModelTag.repository_id == repository.id, ModelTag.tag.in_(batch))
        )
    added = [
        {
            "tag": key,
            "is_private": repository.is_private,
            "namespace_id": repository.namespace_id,
            "repository_id": repository.id,
        }
        for key in sorted(keys - known)
    ]
    if added:
        session.execute(insert(ModelTag), added)


def keys_of_tag(session: ReadSession, caller: Caller | None, tag: str) -> frozenset[str] | None:
    """The keys of which a model with this tag has one; None if the tag is no key."""
    if not _is_key(tag):
        return None
    keys = {tag}
    if tag.startswith(_BASE):
        relation, _, name = tag.removeprefix(_BASE).rpartition(":")
        base = _readable(session, caller, name)
        if base is not None:
            keys.add(_base_key(relation, f"#{base.id}"))
    return frozenset(keys)


def keys_of_size(smallest: float | None, largest: float | None) -> frozenset[str]:
    """The keys of which a model with so many parameters has one."""
    first = 0 if smallest is None else _bits(int(smallest))
    last = _MAX_BITS if largest is None else _bits(int(largest))
    return frozenset(map(_size_key, range(first, last + 1)))


def keys_of_role(role: str) -> frozenset[str]:
    """The key of models of this role."""
    return frozenset({f"{_ROLE}{role}"})


def keys_of_dtype(dtype: str) -> frozenset[str]:
    """The key of models with a tensor of this safetensors dtype among their weights."""
    return frozenset({f"{_DTYPE}{dtype}"})


def role_of(repository: Repository, head: Revision, facts: Mapping[str, Any]) -> str:
    """What a model is: one of ROLES. facts: of the head, as their row has them."""
    if repository.role is not None:
        is_kit = repository.role == "adapter" and _KIT_TAG in facts["tags"]
        return "kit" if is_kit else repository.role
    if facts["adapter_base"] is not None:
        return "adapter"
    if facts["relation"] in ROLES[2:]:
        return str(facts["relation"])
    has_base = bool(facts["bases"]) or head.declared_base not in (None, "none")
    return "finetune" if has_base else "base"


def _keys(session: ReadSession, revision: Revision, facts: dict[str, Any]) -> set[str]:
    keys = set(facts["tags"])
    bases = list(facts["bases"])
    if not bases and revision.declared_base is not None:
        bases.append(revision.declared_base.partition("@")[0])
    parents = select(Revision.repository_id).join(LineageEdge, LineageEdge.parent_id == Revision.id)
    measured = parents.where(
        LineageEdge.child_id == revision.id,
        LineageEdge.origin == "measured",
        LineageEdge.share >= MIN_BASE_SHARE,
    )
    # Ids stand for names that may change.
    if revision.declared_base_revision_id is not None:
        base = session.get_one(Revision, revision.declared_base_revision_id)
        bases.append(f"#{base.repository_id}")
    role = role_of(session.get_one(Repository, revision.repository_id), revision, facts)
    keys.add(f"{_ROLE}{role}")
    keys.update(f"{_DTYPE}{dtype}" for dtype in facts["parameters"] or ())
    relations = {facts["relation"], *(("adapter",) if facts["adapter_base"] else ())}
    for relation in ("", *relations):
        keys.update(_base_key(relation, base) for base in bases)
    keys.update(_base_key(MEASURED, f"#{parent}") for parent in session.scalars(measured))
    if facts["parameters"]:
        keys.add(_size_key(_bits(sum(facts["parameters"].values()))))
    return set(filter(_is_key, keys))


def _base_key(relation: str, base: str) -> str:
    return f"{_BASE}{relation}:{base}" if relation else f"{_BASE}{base}"


def _size_key(bits: int) -> str:
    return f"#parameters:{bits}"


def _bits(n_parameters: int) -> int:
    return min(n_parameters.bit_length(), _MAX_BITS)


def _is_key(tag: str) -> bool:
    # PostgreSQL has no NUL in texts, and no long ones in indexes.
    return 0 < len(tag) <= _MAX_KEY and "\0" not in tag


def _readable(session: ReadSession, caller: Caller | None, name: str) -> Repository | None:
    try:
        found = find_repository(session, name)
    except InvalidName:
        return None
    is_readable = found is not None and allowed(session, caller, "read", found)
    return found if is_readable else None
