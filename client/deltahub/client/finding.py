"""Finding models by what they are, and the family of one."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from deltahub.client.api.endpoints import Api
from deltahub.client.api.parsing import field_of, items_of, record
from deltahub.client.api.transport import Query
from deltahub.client.api.wire import LARGE_ANSWER, odd_answer
from deltahub.client.errors import InvalidArgument
from deltahub.client.names import repository_path
from deltahub.client.records import CommitId, Count, Share

Order = Literal["created", "changed", "downloads", "size", "saved"]
Role = Literal["base", "finetune", "adapter", "kit", "merge", "quantized", "export"]

# The hub's most in one answer.
_PAGE = 100
# A hub looks at some hundreds of models for a page that finds none.
_MAX_PAGES = 10_000


@dataclass(frozen=True)
class FoundModel:
    """A model as `search` returns it. parameters: safetensors dtype -> number of elements."""

    name: str
    private: bool
    role: str
    downloads: int
    task: str | None = None
    library: str | None = None
    base: str | None = None
    parameters: dict[str, Any] | None = None
    head: CommitId | None = None
    created_at: str | None = None
    changed_at: str | None = None
    logical_bytes: Count | None = None
    stored_bytes: Count | None = None


@dataclass(frozen=True)
class LineageModel:
    """layer: 0 is the model asked for; what it derives from has less."""

    name: str
    private: bool
    layer: int
    relation: str | None = None


@dataclass(frozen=True)
class LineageLink:
    """The child derives from the parent: its pusher says so, or its weights do (share)."""

    parent: str
    child: str
    declared: bool
    share: Share | None = None


@dataclass(frozen=True)
class Lineage:
    """The family of a model. more: models that were left out, at least."""

    models: tuple[LineageModel, ...]
    links: tuple[LineageLink, ...]
    more: int = 0


class Finding:
    """The part of `Hub` that finds models."""

    _api: Api

    def search(
        self,
        words: str = "",
        *,
        namespace: str | None = None,
        task: str | None = None,
        library: str | None = None,
        base: str | None = None,
        tags: tuple[str, ...] = (),
        dtype: str | None = None,
        role: Role | None = None,
        parameters: tuple[float | None, float | None] = (None, None),
        private: bool = False,
        sort: Order = "changed",
        limit: int = 100,
    ) -> list[FoundModel]:
        """The first `limit` models that you may read and that match all of what is given.

        words: parts of the name. base: namespace/name. dtype: of any tensor of the weights, as
        safetensors names it. parameters: how many at least, and at most. private: private ones
        only. sort: created and changed begin with the latest, the others with the most.
        InvalidArgument for a limit below 1; the hub refuses what is no dtype or role.
        """
        if limit < 1:
            raise InvalidArgument(f"limit is 1 or more, not {limit}")
        query: Query = {
            "search": words, "namespace": namespace, "task": task, "library": library,
            "base": base, "tag": list(tags), "dtype": dtype, "role": role,
            "min_parameters": parameters[0], "max_parameters": parameters[1],
            "private": "true" if private else None, "sort": sort, "limit": min(limit, _PAGE),
        }  # fmt: skip
        found: list[FoundModel] = []
        for page in self._pages(query):
            found += page
            if len(found) >= limit:
                break
        return found[:limit]

    def lineage(self, name: str) -> Lineage:
        """What a model derives from, and what derives from it, as far as you may read it."""
        path = f"{repository_path(name)}/lineage"
        answer = self._api.transport.call("GET", path, limit=LARGE_ANSWER)
        return answer.read(partial(record, Lineage))

    def _pages(self, query: Query) -> Iterator[list[FoundModel]]:
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            answer = self._api.transport.call(
                "GET", "/v1/models", query={**query, "cursor": cursor}
            )
            yield list(answer.read(partial(items_of, FoundModel)))
            before = cursor
            cursor = answer.read(lambda value: field_of(value, "next_cursor", str | None))
            if not cursor:
                return
            if cursor == before:
                break
        raise odd_answer(answer.request, "its pages do not end")
