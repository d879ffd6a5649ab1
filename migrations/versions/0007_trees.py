"""Trees of revisions that share what is equal, instead of all entries of each revision."""

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from alembic import op

from deltahub.codecs.files.paths import folded

revision: str = "0007"
down_revision: str | None = "0006"

# SQLite generates ids only for columns of type INTEGER.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PATH = sa.String(1024).with_variant(sa.String(1024, collation="C"), "postgresql")

# The paths where a new node begins depend on the path alone, so equal parts of two trees become the
# same nodes. One path in 64 begins a leaf, and one such path in 64 a group.
_LEAF = 64
_GROUP = 64 * 64

_FORMATS = (
    (".safetensors",),
    (".gguf",),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin"),
    (".onnx",),
    ("tf_model.h5", "tf_model.h5.index.json"),
    ("flax_model.msgpack", "flax_model.msgpack.index.json"),
    (".tflite",),
)
_ROOT_WEIGHTS = 1 << 32
_HEAD = 1 << 33
_PART = 2000


def upgrade() -> None:
    _create_tables()
    connection = op.get_bind()
    for repository_id in connection.scalars(sa.text("SELECT id FROM repositories")).all():
        _Trees(connection, repository_id).build()
    op.drop_table("entries")
    op.drop_table("dropped_entries")
    not_ingested = sa.text("state <> 'ingested'")
    op.create_index(
        "ix_files_not_ingested", "files", ["id"],
        sqlite_where=not_ingested, postgresql_where=not_ingested,
    )  # fmt: skip


def _create_tables() -> None:
    def node(name: str, **options: Any) -> sa.Column[Any]:
        key = sa.ForeignKey("tree_nodes.id", ondelete="CASCADE")
        return sa.Column(name, ID, key, nullable=False, **options)

    op.create_table(
        "tree_nodes",
        sa.Column("id", ID, primary_key=True),
        sa.Column(
            "repository_id", ID, sa.ForeignKey("repositories.id", ondelete="CASCADE"),
            nullable=False,
        ),
    )  # fmt: skip
    op.create_index("ix_tree_nodes_repository_id", "tree_nodes", ["repository_id"])
    op.create_table(
        "tree_links",
        node("parent_id", primary_key=True, autoincrement=False),
        sa.Column("bound", PATH, primary_key=True),
        node("child_id"),
        sa.Column("n_files", sa.BigInteger(), nullable=False),
        sa.Column("n_bytes", sa.BigInteger(), nullable=False),
        sa.Column("id_sum", sa.LargeBinary(20), nullable=False),
        sa.Column("marks", sa.BigInteger(), nullable=False),
        sa.Column("changed_number", sa.BigInteger(), nullable=False),
        sa.Column("changed_commit", sa.LargeBinary(20), nullable=False),
    )
    op.create_index("ix_tree_links_child_id", "tree_links", ["child_id"])
    op.create_table(
        "tree_entries",
        node("node_id", primary_key=True, autoincrement=False),
        sa.Column("path", PATH, primary_key=True),
        sa.Column("file_id", ID, sa.ForeignKey("files.id"), nullable=False),
        sa.Column("mode", sa.String(8), nullable=False),
        sa.Column("changed_number", sa.BigInteger(), nullable=False),
        sa.Column("changed_commit", sa.LargeBinary(20), nullable=False),
    )
    op.create_index("ix_tree_entries_file_id", "tree_entries", ["file_id"])
    kind = ID.compile(dialect=op.get_bind().dialect)
    for table in ("revisions", "dropped_revisions"):
        # Alembic would add the constraint on its own, which SQLite cannot.
        op.execute(
            f"ALTER TABLE {table} ADD COLUMN tree_id {kind}"
            f" CONSTRAINT fk_{table}_tree_id_tree_nodes REFERENCES tree_nodes (id)"
        )
        op.create_index(f"ix_{table}_tree_id", table, ["tree_id"])


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    file_id: int
    mode: str
    size: int
    etag: str
    number: int  # of the commit that put the file there
    commit: bytes


@dataclass(slots=True)
class _Sums:
    n_files: int = 0
    n_bytes: int = 0
    id_sum: int = 0
    marks: int = 0
    number: int = 0
    commit: bytes = bytes(20)

    def add(self, other: "_Sums") -> None:
        self.n_files += other.n_files
        self.n_bytes += other.n_bytes
        self.id_sum = (self.id_sum + other.id_sum) % (1 << 160)
        self.marks |= other.marks
        if other.number > self.number:
            self.number, self.commit = other.number, other.commit


@dataclass(frozen=True, slots=True)
class _Node:
    first: str
    id: int
    sums: _Sums


@dataclass
class _Trees:
    """Builds the trees of one repository. known: key of its contents -> a node that is written."""

    connection: sa.Connection
    repository_id: int
    known: dict[bytes, _Node] = field(default_factory=dict)

    def build(self) -> None:
        # Parents have smaller ids. The last trees are kept, since a parent is among them mostly.
        kept: dict[str, dict[str, _Entry]] = {}
        rows = self._rows("revisions")
        for row_id, commit, parent, number in rows:
            before = kept[parent] if parent in kept else self._tree_of(parent)
            tree = self._entries("entries", "revision_id", row_id, (number, commit), before)
            self._store("revisions", row_id, tree)
            kept[commit] = tree
            if len(kept) > 4:
                kept.pop(next(iter(kept)))
        kept.clear()
        rows = self._rows("dropped_revisions")
        for row_id, commit, parent, number in rows:
            before = self._tree_of(parent) or self._tree_of(parent, "dropped_revisions")
            tree = self._entries("dropped_entries", "dropped_id", row_id, (number, commit), before)
            self._store("dropped_revisions", row_id, tree)

    def _rows(self, table: str) -> list[Any]:
        query = sa.text(
            f'SELECT id, "commit", parent_commit, number FROM {table}'
            " WHERE repository_id = :r ORDER BY id"
        )
        return list(self.connection.execute(query, {"r": self.repository_id}).all())

    def _tree_of(self, commit: str | None, table: str = "revisions") -> dict[str, _Entry]:
        """The tree of a revision that was stored before; empty without one."""
        query = sa.text(
            "SELECT e.path, e.file_id, e.mode, f.size, f.sha256, f.git_blob_id,"
            f" e.changed_number, e.changed_commit FROM {table} r"
            " JOIN tree_links t ON t.parent_id = r.tree_id"
            " JOIN tree_links g ON g.parent_id = t.child_id"
            " JOIN tree_entries e ON e.node_id = g.child_id"
            " JOIN files f ON f.id = e.file_id"
            ' WHERE r.repository_id = :r AND r."commit" = :commit'
        )
        rows = self.connection.execute(query, {"r": self.repository_id, "commit": commit})
        return {row[0]: _entry(row, row[6], bytes(row[7])) for row in rows}

    def _entries(
        self,
        table: str,
        column: str,
        row_id: int,
        commit: tuple[int, str],
        before: dict[str, _Entry],
    ) -> dict[str, _Entry]:
        query = sa.text(
            "SELECT e.path, e.file_id, e.mode, f.size, f.sha256, f.git_blob_id"
            f" FROM {table} e JOIN files f ON f.id = e.file_id WHERE e.{column} = :row"
        )
        tree: dict[str, _Entry] = {}
        for row in self.connection.execute(query, {"row": row_id}):
            old = before.get(row[0])
            if old is not None and (old.file_id, old.mode) == (row[1], row[2]):
                tree[row[0]] = old
            else:
                tree[row[0]] = _entry(row, commit[0], bytes.fromhex(commit[1]))
        return tree

    def _store(self, table: str, row_id: int, tree: dict[str, _Entry]) -> None:
        if not tree:
            return
        leaves = [self._leaf(part) for part in _cut(sorted(tree.items()), _LEAF)]
        groups = [
            self._inner([node for _, node in part])
            for part in _cut([(leaf.first, leaf) for leaf in leaves], _GROUP)
        ]
        top = self._inner(groups)
        change = sa.text(f"UPDATE {table} SET tree_id = :top WHERE id = :row")
        self.connection.execute(change, {"top": top.id, "row": row_id})

    def _leaf(self, part: list[tuple[str, _Entry]]) -> _Node:
        key = _key("leaf", ((e.path, e.file_id, e.mode, e.number, e.commit) for _, e in part))
        if key not in self.known:
            node_id = self._new_node()
            sums = _Sums()
            for path, entry in part:
                sums.add(_sums(path, entry))
            query = (
                "INSERT INTO tree_entries (node_id, path, file_id, mode, changed_number,"
                " changed_commit) VALUES (:node, :path, :file, :mode, :number, :commit)"
            )
            rows = [
                {
                    "node": node_id, "path": path, "file": entry.file_id, "mode": entry.mode,
                    "number": entry.number, "commit": entry.commit,
                }
                for path, entry in part
            ]  # fmt: skip
            self.connection.execute(sa.text(query), rows)
            self.known[key] = _Node(part[0][0], node_id, sums)
        return self.known[key]

    def _inner(self, children: list[_Node]) -> _Node:
        key = _key("inner", (child.id for child in children))
        if key not in self.known:
            node_id = self._new_node()
            sums = _Sums()
            rows = []
            for position, child in enumerate(children):
                sums.add(child.sums)
                rows.append({
                    "parent": node_id, "bound": child.first if position else "",
                    "child": child.id, "files": child.sums.n_files, "bytes": child.sums.n_bytes,
                    "id": child.sums.id_sum.to_bytes(20, "big"), "marks": child.sums.marks,
                    "number": child.sums.number, "commit": child.sums.commit,
                })  # fmt: skip
            query = (
                "INSERT INTO tree_links (parent_id, bound, child_id, n_files, n_bytes, id_sum,"
                " marks, changed_number, changed_commit) VALUES (:parent, :bound, :child, :files,"
                " :bytes, :id, :marks, :number, :commit)"
            )
            self.connection.execute(sa.text(query), rows)
            self.known[key] = _Node(children[0].first, node_id, sums)
        return self.known[key]

    def _new_node(self) -> int:
        query = sa.text("INSERT INTO tree_nodes (repository_id) VALUES (:r) RETURNING id")
        return int(self.connection.execute(query, {"r": self.repository_id}).scalar_one())


def _entry(row: Any, number: int, commit: bytes) -> _Entry:
    path, file_id, mode, size, sha256, git_blob_id = row[:6]
    etag = sha256 if mode == "lfs" or git_blob_id is None else git_blob_id
    return _Entry(path, file_id, mode, size, etag, number, commit)


def _sums(path: str, entry: _Entry) -> _Sums:
    digest = hashlib.sha1(f"{path}\0{entry.etag}".encode(), usedforsecurity=False).digest()
    marks = sum(1 << bit for bit, endings in enumerate(_FORMATS) if path.endswith(endings))
    name = path.rpartition("/")[2]
    if "/" not in path and path.endswith(".safetensors"):
        marks |= _ROOT_WEIGHTS
    if folded(name) == "head":
        marks |= _HEAD
    number = int.from_bytes(digest, "big")
    return _Sums(1, entry.size, number, marks, entry.number, entry.commit)


def _cut(items: list[tuple[str, Any]], n: int) -> Iterator[list[Any]]:
    """Cut a list before each path that begins a node; at most _PART items stay together."""
    part: list[Any] = []
    for path, item in items:
        if part and (zlib.crc32(path.encode()) % n == 0 or len(part) == _PART):
            yield part
            part = []
        part.append((path, item))
    if part:
        yield part


def _key(kind: str, items: Iterable[Any]) -> bytes:
    return hashlib.sha256(repr((kind, list(items))).encode()).digest()
