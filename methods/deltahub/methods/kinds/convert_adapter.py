"""The arguments of the job `convert_adapter`."""

from collections.abc import Sequence
from typing import ClassVar, Final, Self

from pydantic import Field, model_validator

from deltahub.methods.errors import CannotAdapt
from deltahub.methods.kinds.bases.pissa_init import FactorDtype
from deltahub.methods.kinds.kind import JobArguments, KnownModel, RevisionName

# Rules of a report by which an adapter is converted only with the factors that it started from.
_NEED_FACTORS: Final = ("from_base", "needs_init")


class ConvertAdapterArguments(JobArguments):
    """Convert an adapter that changed its base into a plain LoRA of the base itself.

    The result is a new commit on the adapter's main; the commit that was pushed keeps a tag.
    """

    kind: ClassVar[str] = "convert_adapter"
    steps_version: ClassVar[int] = 1

    adapter: RevisionName = Field(description="The adapter, at the head of its branch main.")
    base: RevisionName | None = Field(
        default=None,
        description="The model that the adapter was trained on; by default the base that it names.",
    )
    init: RevisionName | None = Field(
        default=None,
        description="The kit or adapter that it started from; by default that which the adapter "
        "names, its own folder of initial factors, or the base's weights.",
    )
    rank: int | None = Field(
        default=None, ge=1, le=8192, description="The rank of the result; by default twice its own."
    )
    error: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="In place of a rank: the smallest rank whose updates are within this relative "
        "error.",
    )
    dtype: FactorDtype = Field(default="F32", description="The dtype of the result.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rank is not None and self.error is not None:
            raise ValueError("give a rank or an error, not both")
        return self

    def inputs(self) -> tuple[str, ...]:
        return tuple(each for each in (self.adapter, self.base, self.init) if each is not None)

    def check(self, models: Sequence[KnownModel]) -> None:
        adapter = models[0]
        adapter.require_head()
        if not adapter.is_adapter:
            raise CannotAdapt(
                f"{adapter.title} has no adapter_config.json: push an adapter as PEFT saves it"
            )
        base = models[1] if self.base is not None else adapter.require_base()
        adapter.refuse_hidden_base(base)
        report = adapter.report
        if report is None:
            return
        if self.init is None and report["rule"] == "plain" and not adapter.has_initial_factors():
            if report["state"] == "quarantined":
                raise CannotAdapt(f"{adapter.title}: {report['why']}. {report['way_out']}")
            raise CannotAdapt(
                f"{adapter.title} is a plain LoRA already: init_lora_weights is {report['init']},"
                " which leaves the base as it is"
            )
        if self.base is None and (report["base"] or {}).get("differs"):
            raise CannotAdapt(
                f"{adapter.title} was trained on another commit of {base.name}, whose weights are"
                f" not those of {base.title}: name it by --base"
            )
        is_lost = report["state"] == "quarantined" and report["initial_factors"] is None
        if is_lost and self.base is None and self.init is None and report["rule"] in _NEED_FACTORS:
            raise CannotAdapt(
                f"{adapter.title} was started by {report['init']}: {report['why']}."
                f" {report['way_out']}; or name what it started from by --init"
            )
        most = 2 * max(report["ranks"], default=0)
        if self.rank is not None and 0 < most < self.rank:
            raise CannotAdapt(
                f"rank {self.rank}: the updates of {adapter.title} have rank {most} at most, so"
                " choose no more"
            )
