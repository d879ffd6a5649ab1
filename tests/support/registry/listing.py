"""A hub of models to list, and every list of it beside one that is made by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from sqlalchemy import update

from deltahub.registry import Caller, Registry
from deltahub.registry.access import organizations
from deltahub.registry.access.permissions import allowed
from deltahub.registry.access.repositories import find_repository
from deltahub.registry.cards.describe import describe_marked
from deltahub.registry.catalog.lists.search import ORDERS, Order, search
from deltahub.registry.db.models import Repository
from deltahub.registry.downloads.file_reader import FileReader
from support.registry.opened import caller, ensure_repository, push

WORDS = ("llama", "mistral", "chat", "x", "Model_9", "a.b")
TAGS = ("alpha", "beta", "common")


@dataclass(frozen=True)
class Made:
    name: str
    tags: frozenset[str]


@dataclass(frozen=True)
class Facts:
    """A model that a caller may read, and its place in each order: the larger is the first."""

    made: Made
    places: dict[Order, int]


def make_models(reg: Registry, n: int = 40) -> tuple[list[Made], list[Caller | None]]:
    """Models of users and of an organization, and callers who may read different ones."""
    ann, bob, eve = (caller(reg, name) for name in ("ann", "bob", "eve"))
    admin = caller(reg, "root", is_admin=True)
    organizations.create_organization(reg, "lab")
    organizations.add_member(reg, "lab", "ann", "write")
    random = Random(5)
    made = []
    for number in range(n):
        owner, namespace = random.choice(((ann, "ann"), (bob, "bob"), (ann, "lab")))
        name = f"{namespace}/{random.choice(WORDS)}-{number}"
        private = random.random() < 0.4
        tags = frozenset(tag for tag in TAGS if tag == "common" or random.random() < 0.4)
        if random.random() < 0.2:
            ensure_repository(reg, owner, name, private=private)
            made.append(Made(name, frozenset()))
            continue
        card = f"---\ntags: [{', '.join(sorted(tags))}]\n---\n{number}".encode()
        push(reg, owner, name, {"README.md": card}, private=private)
        made.append(Made(name, tags))
    for one in random.sample(made, n // 3):  # in another order than that of their creation
        if one.tags:
            owner = bob if one.name.startswith("bob/") else ann
            push(reg, owner, one.name, {"more.txt": one.name.encode()})
    assert describe_marked(reg, FileReader(reg), 0, 10 * n) is None
    with reg.db.write() as session:
        for number in range(1, n + 1):
            session.execute(
                update(Repository)
                .where(Repository.id == number)
                .values(
                    downloads=random.randrange(5),
                    logical_bytes=random.randrange(9),
                    saved_bytes=random.randrange(3),
                )
            )
    return made, [None, ann, bob, eve, admin]


def check_lists(
    reg: Registry, made: Sequence[Made], callers: Sequence[Caller | None], every: int = 1
) -> int:
    """Every list has what it should have, in order; returns how many models were listed.

    every: 1 for all lists. With each seventh, any two of caller, namespace, words, tags and order
    still meet.
    """
    n_listed = n_cases = 0
    for who in callers:
        facts = _readable(reg, made, who)
        for namespace in (None, "ann", "lab", "nobody"):
            for words in ((), ("LLaMA",), ("l_9",), ("b/",), ("chat", "an"), ("é",)):
                for tags in ((), ("alpha",), ("alpha", "beta")):
                    for order in ORDERS:
                        n_cases += 1
                        if n_cases % every:
                            continue
                        expected = _expected(facts, namespace, words, tags, order)
                        limit = (3, 7, 100)[n_cases % 3]
                        found = _listed(reg, who, namespace, words, tags, order, limit)
                        case = (who and who.name, namespace, words, tags, order, limit)
                        assert found == expected, case
                        n_listed += len(expected)
    return n_listed


def _listed(
    reg: Registry, who: Caller | None, namespace: str | None, words: Sequence[str],
    tags: Sequence[str], order: Order, limit: int,
) -> list[str]:  # fmt: skip
    names: list[str] = []
    after = None
    while True:
        with reg.db.read() as session:
            found = search(
                session, who, namespace=namespace, words=words,
                keys=[frozenset({tag}) for tag in tags], order=order, after=after, limit=limit,
            )  # fmt: skip
        assert len(found.items) <= limit
        names += [one.name for one in found.items]
        after = found.after
        if after is None:
            return names


def _expected(
    facts: Sequence[Facts], namespace: str | None, words: Sequence[str], tags: Sequence[str],
    order: Order,
) -> list[str]:  # fmt: skip
    found = [
        (one.places[order], one.places["created"], one.made.name)
        for one in facts
        if namespace in (None, one.made.name.partition("/")[0])
        and all(word.lower() in one.made.name.lower() for word in words)
        and one.made.tags.issuperset(tags)
    ]
    return [name for _, _, name in sorted(found, reverse=True)]


def _readable(reg: Registry, made: Sequence[Made], who: Caller | None) -> list[Facts]:
    found = []
    with reg.db.read() as session:
        for one in made:
            row = find_repository(session, one.name)
            assert row is not None
            if allowed(session, who, "read", row):
                places: dict[Order, int] = {
                    "created": row.id,
                    "changed": row.head_id or 0,
                    "downloads": row.downloads,
                    "size": row.logical_bytes,
                    "saved": row.saved_bytes,
                }
                found.append(Facts(one, places))
    return found
