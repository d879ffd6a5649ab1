"""What of a repository's history is kept: dropping old revisions, and taking them back."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from deltahub.client.api.endpoints import Api
from deltahub.client.api.parsing import field_of, items_of, record
from deltahub.client.api.transport import LONG_TIMEOUT_S
from deltahub.client.errors import InvalidArgument, NotFound, RevisionNotFound
from deltahub.client.names import branch_name, is_commit, namespace_name, repository_path
from deltahub.client.records import Dropped, LoggedCommit, Pruned, Ref, Rule

_T = TypeVar("_T")
_LOG_PAGE: Final = 1000


class History:
    """The part of `Hub` that lists commits, drops revisions and takes them back."""

    _api: Api

    def log(self, name: str, revision: str = "main", *, limit: int = 100) -> Sequence[LoggedCommit]:
        """The newest commits up to a revision (a branch, a tag or a commit), the newest first."""
        path = f"{repository_path(name)}/commits"
        found: list[LoggedCommit] = []
        cursor: str | None = None
        while len(found) < limit:
            query: dict[str, str | int | None] = {
                "revision": revision,
                "limit": min(limit - len(found), _LOG_PAGE),
                "cursor": cursor,
            }
            answer = self._api.transport.call("GET", path, query=query, timeout_s=LONG_TIMEOUT_S)
            page = answer.read(partial(items_of, LoggedCommit))
            found += page
            before = cursor
            cursor = answer.read(lambda value: field_of(value, "next_cursor", str | None))
            if not cursor or cursor == before or not page:
                break
        return found[:limit]

    def prune(self, name: str, rule: Rule, *, dry_run: bool = False) -> Pruned:
        """Drop the revisions of all branches that the rule does not keep.

        Heads and tagged revisions always stay, and those that stay keep their ids. What is dropped
        can be taken back for a time; then the hub frees its bytes. dry_run: only say what would be
        dropped.
        """
        body = {**vars(rule), "dry_run": dry_run}
        del body["of"]
        path = f"{repository_path(name)}/prune"
        return self._ask(partial(record, Pruned), "POST", path, json_body=body)

    def dropped(self, name: str, *, limit: int = 100) -> list[Dropped]:
        """The latest revisions that were dropped and can be taken back. limit: 1 to 1000."""
        path = f"{repository_path(name)}/dropped"
        return self._ask(partial(items_of, Dropped), "GET", path, query={"limit": limit})

    def take_back(self, name: str, commit: str, *, branch: str) -> Ref:
        """Make a branch at a dropped revision. commit: the whole id, or its beginning.

        The revision comes back with those of its ancestors that were dropped too. NotFound if it
        was not dropped, or too long ago.
        """
        if not is_commit(commit):
            begins = [each.commit for each in self.dropped(name, limit=1000)]
            found = [each for each in dict.fromkeys(begins) if commit and each.startswith(commit)]
            if not found:
                raise RevisionNotFound(
                    f"{name} has no dropped revision {commit!r}: `deltahub dropped` lists them"
                )
            if len(found) > 1:
                raise InvalidArgument(
                    f"{commit!r} is the beginning of {len(found)} dropped revisions of {name}: "
                    "write more digits"
                )
            commit = found[0]
        path = f"{repository_path(name)}/dropped/{commit}/take-back"
        body = {"branch": branch_name(branch)}
        return self._ask(partial(record, Ref), "POST", path, json_body=body)

    def retention(self, target: str) -> Rule | None:
        """The rule that counts for a namespace or repository; None: all history is kept."""
        try:
            return self._ask(partial(record, Rule), "GET", _path(target))
        except NotFound as exc:
            if exc.code != "entry_not_found":
                raise
            return None

    def set_retention(self, target: str, rule: Rule | None) -> None:
        """Set the rule of a namespace or repository, or take it away (None)."""
        if rule is None:
            self._api.transport.call("DELETE", _path(target))
            return
        body = dict(vars(rule))
        del body["of"]
        self._api.transport.call("PUT", _path(target), json_body=body)

    def _ask(self, parse: Callable[[Any], _T], method: str, path: str, **request: Any) -> _T:
        answer = self._api.transport.call(method, path, timeout_s=LONG_TIMEOUT_S, **request)
        return answer.read(parse)


def _path(target: str) -> str:
    if "/" in target:
        return f"{repository_path(target)}/retention"
    return f"/v1/namespaces/{namespace_name(target)}/retention"
