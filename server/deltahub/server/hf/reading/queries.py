"""Query parameters of lists of models. Parameters that this hub cannot honour are refused."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import QueryParams

from deltahub.registry import ReadSession
from deltahub.registry.access.caller import Caller
from deltahub.registry.cards.card import RELATIONS
from deltahub.registry.catalog.lists import search
from deltahub.registry.catalog.lists.model_tags import MEASURED, keys_of_size, keys_of_tag
from deltahub.registry.names import quoted
from deltahub.server.hf.errors import BadQuery, NotSupported

_KNOWN: Final = (
    "search", "author", "filter", "pipeline_tag", "gated", "num_parameters", "inference",
    "inference_provider", "sort", "direction", "limit", "full", "cardData", "config", "expand",
    "cursor",
)  # fmt: skip
_ORDERS: Final[Mapping[str, search.Order]] = {
    "createdAt": "created", "created_at": "created",
    "lastModified": "changed", "last_modified": "changed", "downloads": "downloads",
    # Nobody likes a model here, so the most used ones come first.
    "likes": "downloads", "likes30d": "downloads", "trending": "downloads",
    "trendingScore": "downloads", "trending_score": "downloads",
}  # fmt: skip
_SORTS: Final = (
    "createdAt (the default), lastModified, downloads, likes and trendingScore, the latest or most"
    " first"
)
_COUNT: Final = re.compile(r"(?P<end>min|max):(?P<number>\d{1,15}(\.\d{1,9})?)(?P<unit>[KMBT]?)")
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_MAX_WORDS: Final = 20
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
_CURSOR: Final = re.compile(r"\d{1,18}-\d{1,18}")


@dataclass(frozen=True)
class ModelFilter:
    """The order and filters of a list of models, except the author.

    min_parameters, max_parameters: bounds, None for no bound. is_empty: no model can match.
    """

    order: search.Order
    words: tuple[str, ...]
    tags: frozenset[str]
    min_parameters: float | None
    max_parameters: float | None
    is_empty: bool

    def keys(self, session: ReadSession, caller: Caller | None) -> list[frozenset[str]]:
        """Return sets of keys: every model that matches has one key of each set."""
        found = [keys_of_tag(session, caller, tag) for tag in sorted(self.tags)]
        if self.min_parameters is not None or self.max_parameters is not None:
            found.append(keys_of_size(self.min_parameters, self.max_parameters))
        return [keys for keys in found if keys is not None]

    def matches(self, info: Mapping[str, Any]) -> bool:
        """Whether a model matches. If its number of parameters is unknown, no bound matches."""
        if not self.tags <= set(info["tags"]):
            return False
        if self.min_parameters is None and self.max_parameters is None:
            return True
        total = info.get("safetensors", {}).get("total")
        return (
            total is not None
            and (self.min_parameters is None or total >= self.min_parameters)
            and (self.max_parameters is None or total <= self.max_parameters)
        )


def parse_query(params: QueryParams) -> ModelFilter:
    """Parse query parameters. Raises BadQuery, NotSupported."""
    if params.get("apps") is not None:
        raise NotSupported("this hub does not know which apps run a model: leave apps out")
    for key in params:
        if key not in _KNOWN:
            raise BadQuery(
                f"lists of models know no {quoted(key)}, only {', '.join(sorted(_KNOWN))}"
            )
    tags = {tag for one in params.getlist("filter") for tag in one.split(",") if tag}
    for tag in tags:
        _check_relation(tag)
    if params.get("pipeline_tag"):
        tags.add(params["pipeline_tag"])
    cursor = params.get("cursor")
    if cursor is not None and not _CURSOR.fullmatch(cursor):
        raise BadQuery("the cursor is wrong: take it from the link to the next page")
    min_parameters, max_parameters = _parameters(params.get("num_parameters"))
    # No model here is gated or served by an inference provider.
    is_empty = _is_gated(params.get("gated")) or bool(
        params.get("inference") or params.get("inference_provider")
    )
    words = tuple(word for text in params.getlist("search") for word in text.split())
    if len(words) > _MAX_WORDS:
        raise BadQuery(f"search has {len(words)} words, and at most {_MAX_WORDS} are taken")
    return ModelFilter(
        _order(params), words, frozenset(tags), min_parameters, max_parameters, is_empty
    )


def _order(params: QueryParams) -> search.Order:
    if params.get("direction", "-1") != "-1":
        raise NotSupported("direction: lists begin with the latest; -1 is the only one")
    sort = params.get("sort")
    if not sort:
        return "created"
    if sort not in _ORDERS:
        raise BadQuery(f"lists are not sorted by {quoted(sort)}, only by {_SORTS}")
    return _ORDERS[sort]


def _check_relation(tag: str) -> None:
    kind, _, rest = tag.partition(":")
    relation, colon, _ = rest.partition(":")
    known = RELATIONS | {MEASURED}
    if kind == "base_model" and colon and relation not in known:
        raise BadQuery(
            f"filter: models are no {quoted(relation)} of a base model, only"
            f" {', '.join(sorted(known))}"
        )


def _is_gated(text: str | None) -> bool:
    if text is None:
        return False
    if text.lower() not in _FLAGS:
        raise BadQuery(f"gated is true or false, not {quoted(text)}")
    return _FLAGS[text.lower()]


def _parameters(text: str | None) -> tuple[float | None, float | None]:
    found: dict[str, float] = {}
    for part in text.split(",") if text else ():
        match = _COUNT.fullmatch(part.strip())
        if match is None or match["end"] in found:
            raise BadQuery(
                f"num_parameters: {quoted(part)} is no bound; write as in min:6B,max:128B"
            )
        found[match["end"]] = float(match["number"]) * _UNITS[match["unit"]]
    return found.get("min"), found.get("max")
