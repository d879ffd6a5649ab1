"""Copies of repositories, written as rows in bulk: what a push of the same files would write.

A copy shares the files of the repository that it copies, as a push of files that the hub has does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sqlalchemy import Table, text

from deltahub.registry.access.users import add_namespace
from deltahub.registry.db.models import Base, Domain, LineageEdge, Ref, Repository, Revision
from deltahub.registry.db.session import WriteSession
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.db.tables.lists import ModelTag, RevisionFacts
from deltahub.registry.db.tables.trees import TreeEntry, TreeLink, TreeNode
from deltahub.registry.registry import Registry

# Repositories of one namespace. One of PRIVATE is private.
_IN_NAMESPACE: Final = 1000
_PRIVATE: Final = 10
# Copies that one transaction writes.
_BATCH: Final = 50_000
# Nodes of the tree of a small model.
_NODES: Final = 3


@dataclass(frozen=True)
class Copy:
    """A repository to be made. template: the id of the repository that it copies."""

    number: int
    template: int
    name: str


def write_copies(reg: Registry, copies: Iterator[Copy]) -> None:
    """Write the rows of the copies, and of the namespaces that they lie in."""
    namespaces: list[tuple[int, int, int]] = []
    with reg.db.write() as session:
        repository_id = session.scalar(text("SELECT max(id) FROM repositories")) or 0
        revision_id = session.scalar(text("SELECT max(id) FROM revisions")) or 0
        node_id = session.scalar(text("SELECT max(id) FROM tree_nodes")) or 0
    n_written = 0
    while batch := list(islice(copies, _BATCH)):
        with reg.db.write() as session:
            while len(namespaces) * _IN_NAMESPACE < n_written + len(batch):
                namespaces.append(_add_namespace(session, len(namespaces)))
            _plan(session, batch, namespaces, n_written, (repository_id, revision_id, node_id))
            _copy_all(session)
            session.execute(text("DROP TABLE copies"))
        n_written += len(batch)
    if not reg.db.is_sqlite:
        with reg.db.write() as session:
            for table in ("repositories", "revisions", "tree_nodes"):
                sequence = f"pg_get_serial_sequence('{table}', 'id')"
                session.execute(text(f"SELECT setval({sequence}, (SELECT max(id) FROM {table}))"))


def _add_namespace(session: WriteSession, number: int) -> tuple[int, int, int]:
    """(id, id of the public domain, id of its private domain) of a new organization."""
    namespace = add_namespace(session, f"lab{number}", "organization")
    private = Domain(key=f"namespace:{namespace.id}")
    session.add(private)
    session.flush()
    public = session.scalar(text("SELECT id FROM domains WHERE key = 'public'"))
    assert public is not None, "the templates are public"
    return namespace.id, public, private.id


def _plan(
    session: WriteSession,
    batch: Sequence[Copy],
    namespaces: Sequence[tuple[int, int, int]],
    n_before: int,
    last: tuple[int, int, int],
) -> None:
    session.execute(
        text(
            "CREATE TEMPORARY TABLE copies (repository_id BIGINT, revision_id BIGINT,"
            " node BIGINT, namespace_id BIGINT, domain_id BIGINT, is_private BOOLEAN, name TEXT,"
            f" hex TEXT, commit_id {_bytes_of(session)}, template BIGINT, head BIGINT, tree BIGINT)"
        )
    )
    rows = []
    for place, each in enumerate(batch, n_before + 1):
        namespace, public, private = namespaces[(place - 1) // _IN_NAMESPACE]
        is_private = place % _PRIVATE == 0
        rows.append(
            {
                "repository": last[0] + place,
                "revision": last[1] + place,
                "node": last[2] + _NODES * place,
                "namespace": namespace,
                "domain": private if is_private else public,
                "is_private": is_private,
                "name": each.name,
                "hex": f"{each.number:032x}",
                "commit": each.number.to_bytes(20, "big"),
                "template": each.template,
            }
        )
    session.execute(
        text(
            "INSERT INTO copies VALUES (:repository, :revision, :node, :namespace, :domain,"
            " :is_private, :name, :hex, :commit, :template, NULL, NULL)"
        ),
        rows,
    )
    session.execute(
        text("UPDATE copies SET head = (SELECT head_id FROM repositories WHERE id = template)")
    )
    session.execute(
        text("UPDATE copies SET tree = (SELECT tree_id FROM revisions WHERE id = head)")
    )


def _bytes_of(session: WriteSession) -> str:
    return "BLOB" if session.get_bind().dialect.name == "sqlite" else "BYTEA"


def _copy_all(session: WriteSession) -> None:
    """The rows of a commit, each table by one statement. t: the template's row, c: the copy."""
    of_head = "t.revision_id = c.head"
    _copy(
        session, Repository, "t.id = c.template",
        id="c.repository_id", namespace_id="c.namespace_id", name="c.name",
        domain_id="c.domain_id", is_private="c.is_private", head_id="c.revision_id",
        downloads="c.repository_id % 997",
    )  # fmt: skip
    for level in range(_NODES):
        of_template = "t.id = c.tree"
        _copy(
            session, TreeNode, of_template, id=f"c.node + {level}", repository_id="c.repository_id"
        )
    _copy(
        session, Revision, "t.id = c.head",
        id="c.revision_id", repository_id="c.repository_id", commit="'00000000' || c.hex",
        ingest_job_id="NULL", tree_id="c.node",
    )  # fmt: skip
    _copy(session, Ref, of_head, repository_id="c.repository_id", revision_id="c.revision_id")
    group = "(SELECT child_id FROM tree_links WHERE parent_id = c.tree)"
    leaf = f"(SELECT child_id FROM tree_links WHERE parent_id = {group})"
    for level, parent in enumerate(("c.tree", group)):
        _copy(
            session, TreeLink, f"t.parent_id = {parent}",
            parent_id=f"c.node + {level}", child_id=f"c.node + {level + 1}",
            changed_commit="c.commit_id",
        )  # fmt: skip
    _copy(
        session, TreeEntry, f"t.node_id = {leaf}",
        node_id="c.node + 2", changed_commit="c.commit_id",
    )  # fmt: skip
    _copy(session, RevisionFacts, of_head, revision_id="c.revision_id")
    _copy(session, LineageEdge, "t.child_id = c.head", id=None, child_id="c.revision_id")
    _copy(
        session, ModelTag, "t.repository_id = c.template",
        is_private="c.is_private", namespace_id="c.namespace_id", repository_id="c.repository_id",
    )  # fmt: skip
    payload = "'{\"revision_id\": ' || c.revision_id || '}'"
    _copy(
        session, Job, "t.repository_id = c.template AND t.kind = 'ingest'",
        id="c.hex", repository_id="c.repository_id",
        payload=payload if session.get_bind().dialect.name == "sqlite" else f"({payload})::json",
    )  # fmt: skip
    _add_audit(session)


def _add_audit(session: WriteSession) -> None:
    """A creation and a commit of each copy, in the audit log."""
    target = "n.name || '/' || c.name"
    for action, of_copy, detail in (
        ("repository.create", target, """'{"is_private": false}'"""),
        ("revision.commit", f"{target} || '@00000000' || c.hex", """'{"ref": "main"}'"""),
    ):
        if session.get_bind().dialect.name != "sqlite":
            detail += "::json"
        session.execute(
            text(
                "INSERT INTO audit_events (at, user_name, action, target, detail)"
                f" SELECT t.created_at, 'bench', '{action}', {of_copy}, {detail}"
                " FROM copies c JOIN namespaces n ON n.id = c.namespace_id"
                " JOIN revisions t ON t.id = c.head".replace(":", "\\:")
            )
        )


def _copy(session: WriteSession, model: type[Base], on: str, **changed: str | None) -> None:
    """Copy the rows of a table. changed: column -> its value in the copy; None leaves it out."""
    table = model.__table__
    assert isinstance(table, Table)
    values: Mapping[str, str] = {
        column.name: changed.get(column.name, f't."{column.name}"') or ""
        for column in table.columns
        if changed.get(column.name, "") is not None
    }
    columns = ", ".join(f'"{name}"' for name in values)
    session.execute(
        text(
            f"INSERT INTO {table.name} ({columns}) SELECT {', '.join(values.values())}"
            f" FROM copies c JOIN {table.name} t ON {on} ORDER BY c.repository_id"
        )
    )
