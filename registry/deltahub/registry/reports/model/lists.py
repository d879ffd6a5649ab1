"""Lists of models for people: found by words and tags, each with what a card of it shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from deltahub.registry import cancellation
from deltahub.registry.access.caller import Caller
from deltahub.registry.cards.describe import facts_without_row, load_facts
from deltahub.registry.cards.facts import NO_FACTS, Facts, shown_tags
from deltahub.registry.cards.spent import Spent
from deltahub.registry.catalog.lists.model_tags import (
    MEASURED,
    keys_of_dtype,
    keys_of_role,
    keys_of_size,
    keys_of_tag,
    role_of,
)
from deltahub.registry.catalog.lists.search import Listed, Order, search
from deltahub.registry.db.session import ReadSession
from deltahub.registry.downloads.file_reader import FileReader
from deltahub.registry.lineage.shown_bases import ShownBases, shown_bases
from deltahub.registry.quotas.usage import Usage, usages_of
from deltahub.registry.registry import Registry

# Models that one page looks at, at most: then it ends early, with a cursor.
_MOST_EXAMINED: Final = 500
_AT_ONCE: Final = 100


@dataclass(frozen=True)
class ModelQuery:
    """Which models, and in which order. tags: a model must have each.

    base: namespace/name, declared or measured. dtype: of any tensor of its weights. role: one of
    model_tags.ROLES. min_parameters, max_parameters: no bound if None.
    """

    words: tuple[str, ...] = ()
    namespace: str | None = None
    tags: frozenset[str] = frozenset()
    base: str | None = None
    dtype: str | None = None
    role: str | None = None
    min_parameters: float | None = None
    max_parameters: float | None = None
    only_private: bool = False
    order: Order = "changed"

    def keys(self, session: ReadSession, caller: Caller | None) -> list[frozenset[str]]:
        """Sets of keys: every model that matches has one key of each set."""
        found = [keys_of_tag(session, caller, tag) for tag in sorted(self.tags)]
        if self.base is not None:
            named = [keys_of_tag(session, caller, tag) for tag in self._base_tags()]
            found.append(frozenset().union(*(keys for keys in named if keys is not None)))
        if self.dtype is not None:
            found.append(keys_of_dtype(self.dtype))
        if self.role is not None:
            found.append(keys_of_role(self.role))
        if self.min_parameters is not None or self.max_parameters is not None:
            found.append(keys_of_size(self.min_parameters, self.max_parameters))
        return [keys for keys in found if keys is not None]

    def _base_tags(self) -> frozenset[str]:
        return frozenset({f"base_model:{self.base}", f"base_model:{MEASURED}:{self.base}"})

    def matches(self, line: "ModelLine") -> bool:
        """Whether a model matches. If its number of parameters is unknown, no bound matches."""
        facts = line.facts
        tags, _ = shown_tags(facts, line.bases.declared, line.bases.measured)
        if not self.tags <= set(tags):
            return False
        if self.base is not None and self._base_tags().isdisjoint(tags):
            return False
        if self.role is not None and self.role != line.role:
            return False
        if self.dtype is not None and self.dtype not in (facts.parameters or {}):
            return False
        if self.min_parameters is None and self.max_parameters is None:
            return True
        if not facts.parameters:
            return False
        total = sum(facts.parameters.values())
        is_too_small = self.min_parameters is not None and total < self.min_parameters
        return not is_too_small and (self.max_parameters is None or total <= self.max_parameters)


@dataclass(frozen=True)
class ModelLine:
    """A model of a list. usage: None before the first measurement."""

    listed: Listed
    facts: Facts
    bases: ShownBases
    usage: Usage | None

    @property
    def name(self) -> str:
        return self.listed.name

    @property
    def is_private(self) -> bool:
        return self.listed.repository.is_private

    @property
    def downloads(self) -> int:
        return self.listed.repository.downloads

    @property
    def changed_at(self) -> datetime:
        return self.listed.changed_at

    @property
    def base(self) -> str | None:
        """The base that is declared, as its name is now; or the first that was measured."""
        if self.bases.declared is not None:
            return self.bases.declared.name
        return next(iter((*self.facts.bases, *self.bases.measured)), None)

    @property
    def role(self) -> str:
        """One of model_tags.ROLES; a model without files is as it was made."""
        repository, head = self.listed.repository, self.listed.head
        if head is None:
            return repository.role or "base"
        return role_of(repository, head, vars(self.facts))

    @property
    def n_parameters(self) -> int | None:
        return sum(self.facts.parameters.values()) if self.facts.parameters else None


@dataclass(frozen=True)
class FoundModels:
    """A page. after: the cursor of the next one, None after the last.

    A page that had to look at too many models ends early, and has a next one.
    """

    items: Sequence[ModelLine]
    after: str | None


def find_models(
    reg: Registry,
    reader: FileReader,
    caller: Caller | None,
    query: ModelQuery,
    after: str | None,
    limit: int,
    spent: Spent,
) -> FoundModels:
    """The models that the caller may read and that match. spent: ends the page when it is over.

    InvalidRequest for a wrong cursor.
    """
    items: list[ModelLine] = []
    n_examined = 0
    while True:
        n_batch = min(_AT_ONCE, max(limit - len(items), 1))
        with reg.db.read() as session:
            found = search(
                session, caller, namespace=query.namespace, words=query.words,
                keys=query.keys(session, caller), only_private=query.only_private,
                order=query.order, after=after, limit=n_batch,
            )  # fmt: skip
            lines = _load(session, caller, found.items)
        for number, (line, is_known) in enumerate(lines, 1):
            cancellation.check()
            if not is_known:
                line = _read(reg, reader, line, spent)
            n_examined += 1
            after = line.listed.cursor(query.order)
            if query.matches(line):
                items.append(line)
            is_last = number == len(lines) and found.after is None
            if len(items) >= limit or n_examined >= _MOST_EXAMINED or spent.is_over:
                return FoundModels(items, None if is_last else after)
        if found.after is None:
            return FoundModels(items, None)
        after = found.after
        if len(lines) < n_batch:
            return FoundModels(items, after)  # the search has looked at enough for one page


def describe_model(
    reg: Registry, reader: FileReader, caller: Caller | None, listed: Listed, spent: Spent
) -> ModelLine:
    """What there is to say of one model at listed.head, with its card."""
    with reg.db.read() as session:
        ((line, is_known),) = _load(session, caller, [listed], with_files=True)
    return line if is_known else _read(reg, reader, line, spent)


def _load(
    session: ReadSession,
    caller: Caller | None,
    listed: Sequence[Listed],
    *,
    with_files: bool = False,
) -> list[tuple[ModelLine, bool]]:
    """Each model, and whether its facts have a row."""
    heads = [each.head for each in listed if each.head is not None]
    facts = load_facts(session, [each.id for each in heads], with_files=with_files)
    bases = shown_bases(session, caller, heads)
    usages = usages_of(session, [each.repository.id for each in listed])
    lines = []
    for each in listed:
        usage = usages.get(each.repository.id)
        if each.head is None:
            lines.append((ModelLine(each, NO_FACTS, ShownBases(), usage), True))
            continue
        known = facts.get(each.head.id)
        line = ModelLine(each, known or NO_FACTS, bases[each.head.id], usage)
        lines.append((line, known is not None))
    return lines


def _read(reg: Registry, reader: FileReader, line: ModelLine, spent: Spent) -> ModelLine:
    head = line.listed.head
    assert head is not None, "a model without a head has facts"
    facts = facts_without_row(reg, reader, head, spent)
    return ModelLine(line.listed, facts, line.bases, line.usage)
