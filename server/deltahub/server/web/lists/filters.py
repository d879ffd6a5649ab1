"""What a person may filter a list of models by, and the page of models that is found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Query

from deltahub.codecs.dtypes import HEADER_BITS
from deltahub.registry.access.caller import Caller
from deltahub.registry.cards.spent import Spent
from deltahub.registry.catalog.lists.search import Order
from deltahub.registry.reports.model.lists import FoundModels, ModelQuery, find_models
from deltahub.server.hub import Hub

PAGE: Final = 30
_MOST_WORDS: Final = 20
ORDERS: Final[Mapping[Order, str]] = {
    "changed": "Last changed",
    "created": "Newest",
    "downloads": "Most downloaded",
    "size": "Largest",
    "saved": "Most saved",
}
# Sizes in parameters from which and up to which a list may be.
SIZES: Final = {
    "100M": 1e8, "500M": 5e8, "1B": 1e9, "3B": 3e9, "8B": 8e9, "14B": 1.4e10, "34B": 3.4e10,
    "70B": 7e10, "200B": 2e11,
}  # fmt: skip
DTYPES: Final = tuple(HEADER_BITS)
_ROLES: Final[Mapping[str, str]] = {
    "base": "Base models", "finetune": "Fine-tunes", "adapter": "Adapters", "kit": "Init kits",
    "merge": "Merges", "quantized": "Quantized models", "export": "Exports",
}  # fmt: skip
# What the fields suggest; any other word may be typed.
TASKS: Final = (
    "text-generation", "text-classification", "token-classification", "question-answering",
    "summarization", "translation", "fill-mask", "feature-extraction", "sentence-similarity",
    "image-text-to-text", "image-classification", "object-detection", "text-to-image",
    "automatic-speech-recognition", "text-to-speech",
)  # fmt: skip
LIBRARIES: Final = (
    "transformers",
    "peft",
    "diffusers",
    "sentence-transformers",
    "timm",
    "gguf",
    "safetensors",
)

_Word = Annotated[str, Query(max_length=200)]


@dataclass(frozen=True)
class Filters:
    """The fields of the form, as they were sent."""

    q: str
    task: str
    library: str
    tag: str
    base: str
    ns: str
    dtype: str
    role: str
    least: str
    most: str
    private: bool
    sort: Order
    after: str | None

    @property
    def n_active(self) -> int:
        """Fields that are filled in, beside the words."""
        fields = (self.task, self.library, self.tag, self.base, self.ns, self.dtype, self.role,
                  self.least, self.most, self.private)  # fmt: skip
        return sum(map(bool, fields))

    def query(self, namespace: str | None = None) -> ModelQuery:
        """The query; of one namespace if it is given."""
        tags = {self.task, self.library, *(tag.strip() for tag in self.tag.split(","))}
        return ModelQuery(
            words=tuple(self.q.split()[:_MOST_WORDS]),
            namespace=namespace or self.ns or None,
            tags=frozenset(tags - {""}),
            base=self.base or None,
            dtype=self.dtype or None,
            role=self.role or None,
            min_parameters=SIZES.get(self.least),
            max_parameters=SIZES.get(self.most),
            only_private=self.private,
            order=self.sort,
        )


def _filters(
    q: _Word = "",
    task: _Word = "",
    library: _Word = "",
    tag: _Word = "",
    base: _Word = "",
    ns: _Word = "",
    dtype: _Word = "",
    role: _Word = "",
    least: _Word = "",
    most: _Word = "",
    private: bool = False,
    sort: Order = "changed",
    after: Annotated[str | None, Query(max_length=40)] = None,
) -> Filters:
    return Filters(
        q.strip(), task.strip(), library.strip(), tag.strip(), base.strip(), ns.strip(),
        dtype, role, least, most, private, sort, after,
    )  # fmt: skip


FiltersDep = Annotated[Filters, Depends(_filters)]


def found_models(
    hub: Hub, viewer: Caller | None, filters: Filters, namespace: str | None = None
) -> FoundModels:
    """Return the page of models that a viewer may read and that match."""
    spent = Spent(hub.settings.page_bytes, hub.settings.page_entries)
    query = filters.query(namespace)
    return find_models(hub.registry, hub.reader, viewer, query, filters.after, PAGE, spent)


# What the template of a list needs.
CHOICES: Final[dict[str, Any]] = {
    "orders": ORDERS, "sizes": tuple(SIZES), "dtypes": DTYPES, "tasks": TASKS,
    "libraries": LIBRARIES, "roles": _ROLES,
}  # fmt: skip
