"""neuzip.json: what an export has made of each weight, and what it costs before it starts."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from deltahub.codecs.exports.coding import MANTISSA_BITS, AnyCoding
from deltahub.codecs.exports.file import FILE_NAME
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.methods.kinds.export_neuzip import ExportMethod
from deltahub.methods.sizes import human_size

REPORT_FILE: Final = "neuzip.json"
# Bits of an element beside its mantissa: the sign, and the entropy of trained exponents.
_OTHER_BITS: Final = 1 + 2.65
# Names in a sentence; more are counted.
_MOST_NAMES: Final = 3
# Fields of the model's card that hold for the export, too.
_CARRIED: Final = (
    "license", "license_name", "license_link", "language", "datasets", "pipeline_tag",
)  # fmt: skip
# Characters of one of these fields; a longer one is left out, so that the card can be read.
_MAX_FIELD: Final = 16_384
_CUT: Final = "\n\nThe rest is in the model's own card.\n"


class ExportedWeight(BaseModel):
    """One compressed weight. Errors are of its elements after decoding."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    dtype: str
    shape: tuple[int, ...]
    method: ExportMethod = Field(
        default="neuzip",
        description="neuzip keeps mantissa bits; entquant made whole numbers with a step for each"
        " row.",
    )
    bits: int | None = Field(
        description="Mantissa bits that are kept; none with entquant, whose whole numbers have no"
        " mantissa."
    )
    levels: tuple[int, ...] = Field(
        description="Mantissa bits at which it can be read; none with entquant."
    )
    element_bits: float = Field(description="Bits that an element takes in the export.")
    block: int = Field(description="Elements of a block with a scale of its own; 0 for none.")
    plain_bytes: int
    coded_bytes: int
    bound: float | None = Field(
        description="No normal element changes by more, relative to itself; with blocks, none that"
        " is at least twice the smallest normal number. None with entquant, which has no bound."
    )
    error: float = Field(description="Relative error of the whole weight (Frobenius norm).")
    largest: float = Field(description="The largest change of these elements.")
    is_special: bool = Field(
        default=False,
        description="Whether it has infinite or NaN elements, so that it is kept lossless although"
        " it was to be rounded.",
    )


class Perplexity(BaseModel):
    """How well a causal model predicts the next token of a text; 1 is best."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_tokens: int = Field(description="Tokens that were predicted.")
    before: float = Field(description="Of the model.")
    after: float = Field(description="Of its export.")

    @property
    def change(self) -> float:
        """By how much it became larger, relative to what it was."""
        return self.after / self.before - 1


class ExportReport(BaseModel):
    """neuzip.json, beside an export's weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    model: str = Field(description="The model, as namespace/name@commit.")
    method: ExportMethod = "neuzip"
    bits: str = Field(description="As asked for.")
    budget: float | None
    block: int
    weights: tuple[ExportedWeight, ...] = Field(description="Those that are compressed.")
    plain: tuple[str, ...] = Field(description="Names of the tensors that are not.")
    plain_bytes: int = Field(description="Bytes of all tensors of the model.")
    export_bytes: int = Field(description="Bytes of all tensors of the export.")
    perplexity: Perplexity | None = Field(default=None, description="Where a text was given.")

    @property
    def integer_bits(self) -> float | None:
        """Bits that an element of the weights of whole numbers takes; None if there are none."""
        found = [each for each in self.weights if each.method == "entquant"]
        count = sum(prod(each.shape) for each in found)
        return 8 * sum(each.coded_bytes for each in found) / count if count else None

    @property
    def is_lossless(self) -> bool:
        return all(each.error == 0 for each in self.weights)

    def sentences(self) -> list[str]:
        """What a person wants to know."""
        coded = sum(each.coded_bytes for each in self.weights)
        whole = sum(each.plain_bytes for each in self.weights)
        lines = [
            f"{human_size(self.export_bytes)} instead of {human_size(self.plain_bytes)}"
            f" ({_share(self.export_bytes, self.plain_bytes)});"
            f" {_count(len(self.weights), 'compressed weight takes', 'compressed weights take')}"
            f" {_share(coded, whole)} of the plain size, in memory as on the disk"
        ]
        rounded = [each for each in self.weights if each.error > 0]
        if rounded:
            worst = max(rounded, key=lambda each: each.error)
            counts = Counter(each.bits for each in rounded if each.bits is not None)
            kept = ", ".join(f"{n} to {bits}" for bits, n in sorted(counts.items()))
            how = f"{kept} mantissa bits"
            if self.integer_bits is not None:
                how = f"to whole numbers, which take {self.integer_bits:.2f} bits an element"
            lines.append(
                f"{_count(len(rounded), 'weight is', 'weights are')} rounded: {how};"
                f" the largest relative error is {worst.error:.2%}, of {worst.name}"
            )
        else:
            lines.append("nothing is lost: every weight decodes to the bits that it had")
        special = [each.name for each in self.weights if each.is_special]
        if special:
            lines.append(
                f"{_count(len(special), 'weight has', 'weights have')} infinite or NaN elements,"
                f" which cannot be rounded, and lose nothing: {_names(special)}"
            )
        others = len(self.weights) - len(rounded) - len(special)
        if rounded and others:
            lines.append(f"{_count(others, 'other weight loses', 'other weights lose')} nothing")
        if self.perplexity is not None:
            found = self.perplexity
            lines.append(
                f"the perplexity of the given text was {found.before:.4g}, and is"
                f" {found.after:.4g} ({found.change:+.2%}), over {found.n_tokens:,} tokens"
            )
        return lines

    def card(
        self, name: str, base: str, fields: Mapping[str, Any], text: str, max_bytes: int
    ) -> str:
        """The export's model card, of at most max_bytes. fields, text: of the card of the model, {}
        and "" without one; its license holds for the export, too.
        """
        told = {field: _as_yaml(fields[field]) for field in _CARRIED if fields.get(field)}
        carried = "".join(
            f"{field}: {value}\n" for field, value in told.items() if len(value) <= _MAX_FIELD
        )
        lines = "\n".join(f"- {line}" for line in self.sentences())
        # Without loss nothing is quantized; that it is an export is told by its files.
        relation = "" if self.is_lossless else "base_model_relation: quantized\n"
        card = (
            f"---\nbase_model: {base}\n{relation}library_name: deltahub\n"
            f"{carried}tags:\n- neuzip\n---\n# {name}\n\nAn export of `{self.model}` whose weights"
            f" stay compressed in memory (`{FILE_NAME}`). Other programs do not read it; take the"
            " model itself for them.\n\n```python\nfrom deltahub.client.inference import load\n\n"
            f'model = load("{name}")\n```\n\n{lines}\n'
        )
        own = f"\n## The model's own card\n\n{text.strip()}\n" if text.strip() else ""
        room = max_bytes - len(card.encode())
        return card + (own if len(own.encode()) <= room else _shortened(own, room))


class ExportEstimate(BaseModel):
    """What an export will cost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_weights: int
    plain_bytes: int = Field(description="Bytes of all tensors of the model.")
    export_bytes: int = Field(description="Bytes that the export will take, about.")
    memory_bytes: int = Field(description="Memory that the job takes at most.")
    seconds: float = Field(
        default=0, description="How long the job takes without a perplexity, roughly."
    )
    budget_range: tuple[float, float] | None = Field(
        default=None,
        description="With a budget: the fewest and the most bits that an element may take.",
    )
    has_text: bool = Field(default=False, description="Whether a perplexity is measured, too.")

    def sentences(self) -> list[str]:
        """What a person should know before it starts."""
        more = ", and the perplexity of the text more," if self.has_text else ""
        memory = human_size(self.memory_bytes)
        lines = [
            f"the export compresses {self.n_weights} weights and takes about"
            f" {human_size(self.export_bytes)} of the model's {human_size(self.plain_bytes)}"
            f" ({_share(self.export_bytes, self.plain_bytes)}); it takes about"
            f" {max(self.seconds, 1):.0f} s{more} and at most {memory} of memory"
        ]
        if self.budget_range is not None:
            least, most = self.budget_range
            lines.append(
                f"the weights that the budget is for take {least:.2f} bits an element without any"
                f" mantissa bit, and {most:.2f} with all that it may keep"
            )
        return lines


def error_bound(how: AnyCoding) -> float | None:
    """No normal element changes by more, relative to itself; with blocks, none that is at least
    twice the smallest normal number.

    Only numbers beyond the largest one that so many bits can hold exceed it: up to 2^-(bits + 1).
    None for whole numbers: an element below half a step becomes 0.
    """
    if isinstance(how, IntegerCoding):
        return None
    if how.is_lossless:
        return 0.0
    rounding = 1 / (2.0 ** (how.bits + 1) + 1)
    if not how.block:
        return rounding
    # The product with the scale is rounded to the dtype once more.
    return (1 + rounding) * (1 + 2.0 ** -(MANTISSA_BITS[how.dtype] + 1)) - 1


def estimated_bytes(how: AnyCoding, count: int, asked: float = 0) -> int:
    """The bytes that trained weights take, about. asked: bits of an element of whole numbers."""
    if isinstance(how, IntegerCoding):
        return round(asked * count / 8)
    bits = _OTHER_BITS + how.bits + (8 / how.block if how.block else 0)
    return round(min(bits / 8, how.dtype.itemsize) * count)


def _as_yaml(value: Any) -> str:
    """A value of a card as JSON, which YAML reads as well: characters that no text shows, such as
    U+0085, are escaped, because YAML refuses them or takes them for line breaks.
    """
    text = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)


def _shortened(text: str, max_bytes: int) -> str:
    """The beginning of a text, and a sentence that says so."""
    kept = text.encode()[: max(0, max_bytes - len(_CUT.encode()))]
    return kept.decode(errors="ignore") + _CUT


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0 %"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
