"""After any sequence of commits, tags and deletions the hub agrees with a dictionary."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deltahub.registry import Registry, Settings
from deltahub.registry.access.repositories import load_repository
from deltahub.registry.catalog.commit import DeleteFile, commit, list_entries, resolve_revision
from deltahub.registry.catalog.refs import create_ref
from deltahub.registry.catalog.repositories import delete_repository, get_repository
from deltahub.registry.errors import InvalidPath, RefMoved, RepositoryNotFound
from support.registry.opened import caller, push, sha256_of

NAME = "alice/model"
PATHS = st.sampled_from(["a", "b", "a/x", "b/x/y", "c"])
CONTENTS = st.sampled_from([b"", b"1", b"2", b"3"])
Tree = Mapping[str, bytes]


def has_clash(tree: Tree) -> bool:
    return any(one.startswith(other + "/") for one in tree for other in tree)


class Hub(RuleBasedStateMachine):
    """One repository. commits: commit id -> its tree. refs: name -> its commit id."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.reg = Registry.open(Settings(data_dir=Path(self.folder.name) / "data"))
        self.alice = caller(self.reg, "alice")
        self.commits: dict[str, Tree] = {}
        self.refs: dict[str, str] = {}

    def teardown(self) -> None:
        self.reg.close()
        self.folder.cleanup()

    @rule(files=st.dictionaries(PATHS, CONTENTS, min_size=1, max_size=3))
    def push_files(self, files: dict[str, bytes]) -> None:
        head = self.refs.get("main")
        before = {} if head is None else self.commits[head]
        after = {**before, **files}
        if has_clash(after):
            with pytest.raises(InvalidPath):
                push(self.reg, self.alice, NAME, files)
            return
        result = push(self.reg, self.alice, NAME, files, expected_parent=head)
        assert result.changed == (after != before)
        self.commits[result.commit] = after
        self.refs["main"] = result.commit

    @precondition(lambda self: "main" in self.refs and self.commits[self.refs["main"]])
    @rule(data=st.data())
    def delete_a_file(self, data: st.DataObject) -> None:
        before = self.commits[self.refs["main"]]
        path = data.draw(st.sampled_from(sorted(before)))
        result = commit(self.reg, self.alice, NAME, "main", [DeleteFile(path)])
        self.commits[result.commit] = {p: d for p, d in before.items() if p != path}
        self.refs["main"] = result.commit

    @precondition(lambda self: "main" in self.refs)
    @rule(data=st.data())
    def tag_a_revision(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(sorted(self.commits)))
        tag = f"v{len(self.refs)}"
        create_ref(self.reg, self.alice, NAME, "tag", tag, target)
        self.refs[tag] = target

    @precondition(lambda self: "main" in self.refs)
    @rule()
    def push_on_a_parent_that_is_not_the_head(self) -> None:
        with pytest.raises(RefMoved):
            push(self.reg, self.alice, NAME, {"c": b"late"}, expected_parent="0" * 40)

    @precondition(lambda self: "main" in self.refs)
    @rule()
    def delete_the_repository(self) -> None:
        delete_repository(self.reg, self.alice, NAME)
        self.commits.clear()
        self.refs.clear()

    @invariant()
    def every_name_leads_to_its_tree(self) -> None:
        if "main" not in self.refs:
            try:
                assert get_repository(self.reg, None, NAME).head is None
            except RepositoryNotFound:
                assert not self.commits
            return
        with self.reg.db.read() as session:
            repository = load_repository(session, None, NAME)
            for name, commit_id in [*self.refs.items(), *((c, c) for c in self.commits)]:
                revision = resolve_revision(session, repository, name)
                tree = {e.path: e.file.sha256 for e in list_entries(session, revision)}
                assert revision.commit == commit_id
                assert tree == {p: sha256_of(d) for p, d in self.commits[commit_id].items()}


TestHub = Hub.TestCase
TestHub.settings = settings(max_examples=6, stateful_step_count=12, deadline=None)
