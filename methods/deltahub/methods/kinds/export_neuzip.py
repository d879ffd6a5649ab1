"""The arguments of the job `export_neuzip`."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from deltahub.methods.kinds.kind import (
    TEXT_FILE,
    JobArguments,
    KnownModel,
    RepositoryName,
    RevisionName,
)


def _as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


ExportBits = Annotated[
    Literal["7", "5", "4", "3", "2", "1", "0", "auto"], BeforeValidator(_as_text)
]
ExportMethod = Literal["neuzip", "entquant"]
# What each method takes.
_BITS: Final = {"neuzip": ("7", "5", "3", "1", "0", "auto"), "entquant": ("4", "3", "2")}
# The most mantissa bits that auto chooses.
MOST_CHOSEN: Final = 7
# Letters of a text that make some tokens with every tokenizer.
_LEAST_TEXT: Final = 32


class ExportNeuzipArguments(JobArguments):
    """Make a repository of a model whose weights stay compressed in memory while it runs."""

    kind: ClassVar[str] = "export_neuzip"
    steps_version: ClassVar[int] = 1

    model: RevisionName = Field(description="The model, such as a fine-tune.")
    name: RepositoryName = Field(description="The new repository that holds the export.")
    bits: ExportBits = Field(
        default="7",
        description="Mantissa bits that are kept. 7 are all of BF16, so that nothing is lost; with "
        "3 no weight changes by more than a sixteenth of it. auto: those that lose least within "
        "--budget. With entquant 4, 3 or 2: all bits that an element takes, on the mean.",
    )
    method: ExportMethod = Field(
        default="neuzip",
        description="neuzip keeps each weight's exponent and some of its mantissa bits. entquant "
        "makes whole numbers with a step for each row, which take 4, 3 or 2 bits after they are "
        "entropy coded: smaller, without a bound.",
    )
    lossless: bool = Field(
        default=False, description="Keep every mantissa bit, of F16, F32 and F64 as well."
    )
    budget: float | None = Field(
        default=None,
        gt=0,
        le=64,
        description="With bits auto: bits that an element of the rounded weights may take, on "
        "the mean.",
    )
    block: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="Divide each block of so many elements by its largest fraction before it is "
        "rounded, as the paper does with 512: a power of two from 8 on, or 0 not to divide.",
    )
    also: tuple[Annotated[int, Field(ge=0, le=7)], ...] | None = Field(
        default=None,
        max_length=8,
        description="Fewer mantissa bits at which the same file may be read as well. Each makes "
        "decoding slower. With lossless or auto a weight leaves out those that are not fewer than "
        "its own.",
    )
    keep: tuple[str, ...] | None = Field(
        default=None,
        max_length=64,
        description="Names of tensors that stay lossless, such as *.down_proj.weight; by default "
        "embeddings, heads and routers. none: round these, too.",
    )
    text: str | None = Field(
        default=None,
        min_length=1,
        max_length=1 << 20,
        description="A text file of 32 letters to 1 MiB, of which the report then tells the "
        "perplexity before and after; only for causal models.",
        json_schema_extra={**TEXT_FILE},
    )
    private: bool | None = Field(
        default=None,
        description="Whether the export is private. By default it is if the model is.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.bits not in _BITS[self.method]:
            known = ", ".join(_BITS[self.method])
            raise ValueError(
                f"{self.method} takes {known} bits, not {self.bits}: give one of these, or another"
                " method"
            )
        if self.method == "entquant" and (self.lossless or self.block or self.also):
            raise ValueError("entquant takes bits and keep: leave lossless, block and also out")
        if self.block and (self.block < 8 or self.block & (self.block - 1)):
            raise ValueError(f"block {self.block}: a power of two from 8 to 4096, or 0")
        if (self.bits == "auto") != (self.budget is not None):
            raise ValueError("bits auto and a budget belong together: give both, or neither")
        most = MOST_CHOSEN if self.bits == "auto" else int(self.bits)
        not_fewer = [each for each in self.also or () if each >= most and not self.lossless]
        if not_fewer:
            raise ValueError(
                f"also {not_fewer[0]}: not fewer than the {most} mantissa bits that are kept"
                f"{' at most' if self.bits == 'auto' else ''}: leave it out"
            )
        if self.lossless and self.bits != "7":
            raise ValueError("lossless keeps all bits: leave bits out")
        if self.lossless and self.block:
            raise ValueError("lossless weights are not divided: leave block out")
        if self.text is not None and len(self.text.strip()) < _LEAST_TEXT:
            raise ValueError(
                f"text: {len(self.text.strip())} letters are too few for a perplexity; give at"
                f" least {_LEAST_TEXT}, and better some pages"
            )
        return self

    def inputs(self) -> tuple[str, ...]:
        return (self.model,)

    def check(self, models: Sequence[KnownModel]) -> None:
        # Imported here, because a command that asks for a job would wait for all codecs.
        from deltahub.codecs.exports.file import FILE_NAME
        from deltahub.methods.kinds.weights.choice import check_shapes, refuse_other_models

        (model,) = models
        is_export = model.has_file(FILE_NAME)
        refuse_other_models(model.title, is_adapter=model.is_adapter, is_export=is_export)
        shapes = model.shapes()
        if shapes is not None:
            check_shapes(shapes, self, model.title)
