"""The kit of an adapter: all that a later move to another base needs, and no private data.

It is made where the private data are, beside the training of the adapter. The discriminator and
the seeds tell something about the data (whether an input was among them can be guessed), so that
a hub keeps a kit for its own jobs and gives it to nobody.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.kinds.kind import RevisionName
from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.measures.discrimination import DiscriminatorReport
from deltahub.methods.transfer.measures.distances import Sketch

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

N_SEEDS: Final = 5
_MOST_SEEDS: Final = 64


class Seed(BaseModel):
    """A private example that its owner allows to be stored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: str = Field(min_length=1, max_length=20_000)
    completion: str | None = Field(default=None, max_length=20_000)


class TransferKit(BaseModel):
    """kit.json beside the discriminator."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    name: str = Field(
        min_length=1,
        max_length=100,
        pattern=r"^[^\r\n]+$",
        description="Of the private dataset, as the discriminator knows it.",
    )
    adapter: RevisionName | None = Field(default=None, description="Whose kit this is.")
    base: RevisionName = Field(description="The base of the adapter and of the discriminator.")
    contract: Contract
    seeds: tuple[Seed, ...] = Field(min_length=1, max_length=_MOST_SEEDS)
    n_examples: int = Field(ge=1, description="Private examples, and inputs that a move makes.")
    source_accuracy: float | None = Field(
        default=None, ge=0, le=1, description="Of the adapter on a private test set."
    )
    n_tests: int = Field(default=0, ge=0, description="Examples of that test set.")
    discriminator: DiscriminatorReport
    sketch: Sketch | None = Field(
        default=None, description="Of the private inputs, to compare with made-up ones later."
    )
    adapter_sha256: Digest
    discriminator_sha256: Digest
    tokenizer_sha256: Digest = Field(description="Of the base's tokenizer.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.source_accuracy is None) != (self.n_tests == 0):
            raise ValueError("source_accuracy and n_tests belong together: give both or neither")
        if len({each.input for each in self.seeds}) < len(self.seeds):
            raise ValueError("two seeds are the same: a seed that is shown twice helps nobody")
        return self

    @property
    def inputs(self) -> list[str]:
        """The inputs of the seeds."""
        return [each.input for each in self.seeds]

    def require_base(self, base: str, discriminator: bytes | None = None) -> None:
        """CannotTransfer for a kit of another base, or with another discriminator than its own."""
        if base != self.base:
            raise CannotTransfer(
                f"the kit is for {self.base}, and the adapter's base is {base}: make a kit on that"
                " base"
            )
        if discriminator is not None:
            found = sha256(discriminator).hexdigest()
            if found != self.discriminator_sha256:
                raise CannotTransfer(
                    f"the discriminator's SHA-256 is {found[:12]}..., and the kit names"
                    f" {self.discriminator_sha256[:12]}...: push the kit again"
                )

    def sentences(self) -> list[str]:
        """What a person should know of it, above all what it tells of the private data."""
        known = "its accuracy is not known, so a move can promise a loss, and no accuracy"
        if self.source_accuracy is not None:
            known = f"its accuracy is {self.source_accuracy:.1%} on {self.n_tests} private tests"
        lines = [
            f"a kit for {self.name} on {self.base}, from {self.n_examples} private examples;"
            f" {known}",
            *self.discriminator.sentences(),
            f"it holds {len(self.seeds)} private inputs as they are, and a discriminator from which"
            " the presence of an input in the private data can be guessed",
        ]
        if self.sketch is not None:
            lines.append(
                f"its sketch is a mean of {self.sketch.n} inputs with Gaussian noise of"
                f" {self.sketch.noise:g} on each of {len(self.sketch.values)} numbers; one input"
                f" moves it by at most {self.sketch.sensitivity:.3g}, {_privacy_of(self.sketch)}"
            )
        return lines


def _privacy_of(sketch: Sketch) -> str:
    epsilon = sketch.epsilon()
    if epsilon <= 1:
        return f"which is ({epsilon:.2g}, 1e-5)-differentially private"
    return "so that the noise is too small for differential privacy"


def tokenizer_digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 of a tokenizer: of its tokenizer.json, or of all files of its folder that are part of
    it. Two bases with the same one have the same tokens.
    """
    names: Sequence[str] = (
        ["tokenizer.json"]
        if "tokenizer.json" in files
        else sorted(name for name in files if name in _TOKENIZER_FILES)
    )
    if not names:
        raise CannotTransfer("the base has no tokenizer: it cannot read text")
    total = sha256()
    for name in names:
        total.update(f"{name}\0{len(files[name])}\0".encode())
        total.update(files[name])
    return total.hexdigest()


_TOKENIZER_FILES: Final = (
    "added_tokens.json",
    "merges.txt",
    "spiece.model",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
)
