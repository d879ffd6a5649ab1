"""A hub whose revisions had all of their entries as rows: it reads the same, and shares nodes."""

from pathlib import Path

from sqlalchemy import text

from deltahub.registry import Registry
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.commit import DeleteFile, commit
from deltahub.registry.catalog.entries import list_entries
from deltahub.registry.catalog.history import last_changes
from deltahub.registry.catalog.pages.folders import read_folders
from deltahub.registry.catalog.refs import create_ref, resolve_revision
from deltahub.registry.catalog.trees.read import Tree
from deltahub.registry.maintenance.fsck.cursor import Cursor
from deltahub.registry.maintenance.fsck.trees import check_trees
from deltahub.registry.retention.drop import delete_ref
from deltahub.registry.retention.take_back import take_back
from support.registry.commits import caller_of
from support.registry.old_schema import make_0006
from support.registry.opened import caller, opened_registry, push

NAME = "ann/m"
PATHS = {f"f{n % 9}/{n:04}.txt": b"%d" % (n % 50) for n in range(1500)}


def shown(reg: Registry) -> dict[str, object]:
    """All that each revision shows of its tree."""
    ann = caller_of(reg, NAME)
    found: dict[str, object] = {}
    with reg.db.read() as session:
        repository = load_repository(session, ann, NAME)
        for commit_id in session.scalars(text('SELECT "commit" FROM revisions ORDER BY id')).all():
            revision = resolve_revision(session, repository, commit_id)
            entries = list_entries(session, revision)
            changes = {entry.path: entry.changed for entry in entries}
            folders = read_folders(session, revision, [f"f{n}" for n in range(9)])
            changes |= {folder: sums.changed for folder, sums in folders.items()}
            last = last_changes(session, revision, changes)
            found[commit_id] = (
                [(entry.path, entry.mode, entry.sha256) for entry in entries],
                {name: info.commit for name, info in last.items()},
                {name: sums for name, sums in folders.items()},
                Tree(session, revision.tree_id).sums,
            )
    return found


def test_revisions_show_the_same_and_share_their_nodes(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        first = push(reg, ann, NAME, PATHS).commit
        push(reg, ann, NAME, {"README.md": b"# one", "model.safetensors": b"w"})
        create_ref(reg, ann, NAME, "branch", "side", first)
        push(reg, ann, NAME, {"f3/new.txt": b"side", "a/HEAD": b"x"}, ref="side")
        for number in range(10):
            push(reg, ann, NAME, {"README.md": b"# %d" % number})
        commit(reg, ann, NAME, "main", [DeleteFile("f3/0003.txt")])
        create_ref(reg, ann, NAME, "branch", "gone", first)
        gone = push(reg, ann, NAME, {"gone.txt": b"gone"}, ref="gone").commit
        delete_ref(reg, ann, NAME, "branch", "gone")
        before = shown(reg)
    make_0006(tmp_path)
    with opened_registry(tmp_path) as reg:
        ann = caller_of(reg, NAME)
        assert shown(reg) == before
        assert list(check_trees(reg, Cursor())) == []
        with reg.db.read() as session:
            n_entries = session.scalar(text("SELECT count(*) FROM tree_entries")) or 0
        assert n_entries < 5 * len(PATHS)  # of 15 revisions
        take_back(reg, ann, NAME, gone, "back")
        with reg.db.read() as session:
            back = resolve_revision(session, load_repository(session, ann, NAME), "back")
            paths = [entry.path for entry in list_entries(session, back)]
        assert paths == sorted([*PATHS, "gone.txt"])
        push(reg, ann, NAME, {"README.md": b"# after"})
        assert list(check_trees(reg, Cursor())) == []
