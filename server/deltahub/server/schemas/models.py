"""Models as lists and families show them."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from deltahub.server.schemas.base import Commit, In, Out


class ModelOut(Out):
    name: str
    private: bool
    role: str = Field(description="base, finetune, adapter, kit, merge, quantized or export")
    task: str | None
    library: str | None
    base: str | None = Field(description="declared, or else the first that was measured")
    parameters: dict[str, int] | None = Field(
        description="safetensors dtype -> number of elements; null if unknown"
    )
    head: Commit | None
    created_at: datetime
    changed_at: datetime
    downloads: int
    logical_bytes: int | None = Field(description="of all revisions, each file once")
    stored_bytes: int | None = Field(
        description="what that takes; what several models share counts with the oldest"
    )


class ModelPage(Out):
    items: list[ModelOut]
    next_cursor: str | None


class LineageModelOut(Out):
    name: str
    private: bool
    layer: int = Field(description="0: the model asked for; less: what it derives from")
    relation: str | None = Field(description="to its bases; null for a base, or not read yet")


class LineageLinkOut(Out):
    parent: str
    child: str
    declared: bool
    share: float | None = Field(
        description="of the bytes of the child's weights, those in the parent or stored as "
        "differences from it; null if nothing was measured"
    )


class LineageOut(Out):
    models: list[LineageModelOut]
    links: list[LineageLinkOut]
    more: int = Field(description="models that were left out, at least")


class ConversionRuleIn(In):
    convert: Literal["ask", "auto", "off", "inherit"] = Field(
        description="ask: adapters that changed their base are converted when somebody asks; auto: "
        "when they are pushed; off: never, and none is quarantined; inherit: no rule of its own, so"
        " that the namespace's counts, or ask"
    )


class ConversionRuleOut(Out):
    convert: str = Field(description="ask, auto or off")
    source: Literal["repository", "namespace", "default"] = Field(
        description="whose rule it is; default: neither has one"
    )


class KitOut(Out):
    name: str = Field(description="of the private dataset")
    base: str | None = Field(
        description="namespace/name@commit; null if the caller may not read it"
    )
    n_examples: int = Field(description="private examples that the kit was made from")
    n_seeds: int = Field(description="private examples that the kit holds as they are")
    source_accuracy: float | None = Field(description="of the adapter, on private tests")
    n_tests: int
    auc: float = Field(description="of the discriminator, on inputs that it was not trained on")
    auc_error: float = Field(description="its standard error")
    has_sketch: bool = Field(description="whether it has a noisy mean of the private inputs")
    is_current: bool = Field(description="whether main has the weights that the kit was made for")
    size: int = Field(description="bytes of the discriminator")
    created_at: datetime
