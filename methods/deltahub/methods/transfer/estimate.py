"""What a move will take, before it begins: memory and time, from the sizes of both bases.

Times are the sum of what a job does: it starts a process, loads bases, writes texts token by
token, reads texts, and trains. A model's weights are read once for each step, and each parameter
is multiplied and added once for each token; each layer takes a while to start, which is all that
counts for tiny models. The constants of a CPU were measured as processor time of one thread
(x86-64, AVX-512, torch 2.13, transformers 5.23), on Llamas of 0.02 and of 35 million parameters:

    import of torch, transformers and PEFT: 10 s without bytecode, half of it with
    a step of 16 texts, with an adapter:    2.0 ms and 49 ms; by the formula 2.0 and 36 ms
    128 tokens read in one batch:           3.7 ms and 121 ms; by the formula 2.0 and 235 ms
    a step of training on 128 tokens:       13 ms and 269 ms; by the formula 13 and 542 ms
    a base loaded again:                    0.02 s and 0.03 s, and its files written out before

Estimates are therefore meant to be within a factor of three of a machine that does nothing else.
Those of a GPU follow from its data sheet and were not measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.errors import CannotTransfer
from deltahub.methods.sizes import human_size
from deltahub.methods.transfer.base_size import BaseSize
from deltahub.methods.transfer.measures.gate import Rung
from deltahub.methods.transfer.prompts import MOST_SHOWN, list_prompt
from deltahub.methods.transfer.recipe import Recipe

# What Python, torch and transformers take before they have a model.
_PROCESS_BYTES: Final = 900 << 20
# Texts of one batch that answers, and of one that is scored or learnt.
_ANSWERED, _SCORED = 16, 8
# Numbers of a layer's width that training keeps of each token and layer; forward passes keep few.
_KEPT_WIDTHS: Final = 24
# Calls of the generator have so many lists, each of which gives about so many items.
_LISTS, _ITEMS = 8, 4
# A list has room for more tokens than its prompt has (models/inventing.py).
_LIST_TIMES: Final = 1.5
_CHARACTERS_OF_TOKEN: Final = 3
_UNKNOWN_LENGTH: Final = 2_048
# A compressed base decodes each layer for each step of tokens (docs/inference.md).
_TIMES_OF_DECODING: Final = 3.5
# The question to the discriminator without the input.
_QUESTION_LENGTH: Final = 24
# Forward and backward, of which the frozen weights need no gradient of their own.
_TIMES_OF_TRAINING: Final = 2.2
# Bases are loaded by turns: for about two rounds of sampling, for answers, and for each way.
_LOADS: Final = 6
# Places whose activations are mapped at most (models/activations.py), modules of a layer, and how
# often a map takes a product of its places and its width: squares, solutions, and what shows that
# it is exact.
_MOST_ROWS, _MODULES, _SOLVED = 4_096, 7, 16
# The widest input of a module, in widths of the base; and activations that are recorded together.
_WIDEST: Final = 4
RECORDED_BYTES: Final = 1 << 30
# What is written down after each step of a job, and how many steps each has.
_STEP_S, _STEPS = 0.1, 20


@dataclass(frozen=True)
class Machine:
    """bytes_s: of weights that are read. flops_s: operations. layer_s: to start one layer;
    trained_layer_s: with its gradients and the optimizer. start_s: of a process that imports all
    that it needs. loaded_bytes_s: of a base that is rebuilt from the store and loaded.
    """

    bytes_s: float
    flops_s: float
    layer_s: float
    trained_layer_s: float
    start_s: float = 6.0
    loaded_bytes_s: float = 2e8

    def load_s(self, base: "BaseSize") -> float:
        """Seconds until a base is in memory."""
        return base.weight_bytes / self.loaded_bytes_s + base.n_layers * self.trained_layer_s


CPU: Final = Machine(8e9, 4e10, 1e-3, 6e-3)
GPU: Final = Machine(1e12, 5e13, 1e-3, 5e-3)


def guessed_length(text: str) -> int:
    """Tokens of a text, where no tokenizer counts them."""
    return min(-(-len(text) // _CHARACTERS_OF_TOKEN), _UNKNOWN_LENGTH)


@dataclass(frozen=True)
class Texts:
    """How many texts there will be, and how long they are. Lengths in tokens. n_drawn: those that
    are about drawn. prompt_length: of what a model is given for an input. answer_length: at most;
    expected_length: that of a usual answer. n_seeds: of one list.
    """

    n: int
    n_drawn: int
    input_length: int
    prompt_length: int
    answer_length: int
    expected_length: int
    list_length: int
    n_seeds: int

    @classmethod
    def of(
        cls,
        seeds: Sequence[tuple[str, str | None]],
        n: int,
        n_drawn: int,
        answer_length: int,
        count: Callable[[str], int] = guessed_length,
        prompt_of: Callable[[str], str] = str,
    ) -> "Texts":
        """seeds: inputs with their completions, if they are known. count: tokens of a text.
        prompt_of: what a model is given for an input.
        """
        inputs = [text for text, _ in seeds]
        answers = [count(each) + 1 for _, each in seeds if each is not None]
        return cls(
            n,
            n_drawn,
            _mean([count(each) for each in inputs]),
            _mean([count(prompt_of(each)) for each in inputs]),
            answer_length,
            min(_mean(answers), answer_length) if answers else answer_length,
            count(list_prompt(inputs[:MOST_SHOWN])) if inputs else 0,
            min(len(seeds), MOST_SHOWN),
        )

    @property
    def length(self) -> int:
        return self.prompt_length + self.answer_length

    @property
    def expected(self) -> int:
        """Tokens of a prompt with a usual answer."""
        return self.prompt_length + self.expected_length


def _mean(numbers: Sequence[int]) -> int:
    return max(round(sum(numbers) / max(len(numbers), 1)), 1)


class RungEstimate(BaseModel):
    """What one way will take. why_not: why it is not possible."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rung: Rung
    memory_bytes: int = Field(ge=0)
    seconds: float = Field(ge=0)
    device: str
    why_not: str | None = None


class TransferEstimate(BaseModel):
    """What a move will take, way by way."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_inputs: int = Field(description="Made-up inputs that are kept.")
    n_draws: int = Field(description="Made-up inputs that are drawn at most.")
    result_bytes: int = Field(description="Of the moved adapter, at most.")
    disk_bytes: int = Field(description="Of the larger base, which is written out to be loaded.")
    memory_bytes: int = Field(description="At most, whichever way needs most.")
    allowed_bytes: int = Field(description="What the job may take.")
    seconds: float = Field(description="Of all ways together.")
    drawing_seconds: float = Field(
        default=0, description="Of these, the time in which inputs are made up."
    )
    device: str
    compressed: bool = Field(
        default=False, description="Whether the old base is held compressed while it runs."
    )
    saved_bytes: int = Field(
        default=0, description="Of memory that the old base takes less if it is held compressed."
    )
    rungs: tuple[RungEstimate, ...]
    missing: tuple[str, ...] = Field(
        default=(), description="What the adapter lacks, so that some ways are not possible."
    )

    @property
    def possible(self) -> tuple[Rung, ...]:
        """The ways that are possible, without freeze."""
        return tuple(
            each.rung for each in self.rungs if each.why_not is None and each.rung != Rung.FREEZE
        )

    def require_memory(self, target: str) -> None:
        """CannotTransfer if the job may not take what it needs. target: the new base."""
        if self.possible and self.memory_bytes > self.allowed_bytes:
            raise CannotTransfer(
                f"moving an adapter to {target} needs about {human_size(self.memory_bytes)} of"
                f" memory on {self.device}, and the job may take {human_size(self.allowed_bytes)}:"
                " let the operator raise DELTAHUB_WORKER_COMPUTE_MEMORY_BYTES, choose another"
                " device, or a smaller base"
            )

    def sentences(self) -> list[str]:
        """What a person should know before it starts."""
        lines = [
            f"the move needs at most {human_size(self.memory_bytes)} of memory and about"
            f" {self.seconds:,.0f} s on {self.device}; the result takes at most"
            f" {human_size(self.result_bytes)}",
            f"{self.n_inputs} inputs are made up and kept, of at most {self.n_draws} drawn",
        ]
        saved = human_size(self.saved_bytes)
        if self.compressed:
            lines.append(
                f"the old base is held compressed, with the same answers: it takes {saved} of"
                f" memory less, and about {_TIMES_OF_DECODING:g} times as long"
            )
        elif self.saved_bytes:
            lines.append(f"the old base would take {saved} of memory less with --compressed")
        for each in self.rungs:
            if each.rung is Rung.FREEZE:
                lines.append("freeze: takes nothing, because the adapter stays where it is")
            elif each.why_not is not None:
                lines.append(f"{each.rung.value}: not possible, because {each.why_not}")
            else:
                lines.append(
                    f"{each.rung.value}: {human_size(each.memory_bytes)} of memory,"
                    f" about {each.seconds:,.0f} s"
                )
        return [*lines, *self.missing]


def memory_of(base: BaseSize, texts: Texts, *, is_trained: bool) -> int:
    """Bytes that a process takes in which the base answers, or is trained on, such texts."""
    length = max(texts.length, round((1 + _LIST_TIMES) * texts.list_length))
    if is_trained:
        tokens = _SCORED * texts.length
        activations = 4 * tokens * base.n_layers * base.width * _KEPT_WIDTHS
        logits = 3 * 4 * tokens * base.vocabulary
        return _PROCESS_BYTES + base.weight_bytes + activations + logits
    cache = 2 * 4 * _ANSWERED * length * base.n_layers * base.width
    logits = 3 * 4 * max(_ANSWERED, _SCORED * texts.length) * base.vocabulary
    return _PROCESS_BYTES + base.weight_bytes + cache + logits


def needs_compression(source: BaseSize, texts: Texts, allowed_bytes: int) -> bool:
    """Whether the source answers only if it is held compressed, which takes longer."""
    is_smaller = source.compressed.weight_bytes < source.weight_bytes
    return is_smaller and memory_of(source, texts, is_trained=False) > allowed_bytes


def mapping_bytes(source: BaseSize, target: BaseSize, texts: Texts) -> int:
    """Bytes of the activations that are in memory together while a map is made, and of a map."""
    n_rows = min(texts.n * texts.length, _MOST_ROWS)
    width = _WIDEST * max(source.width, target.width)
    module = 8 * n_rows * 2 * width
    together = min(_MODULES * max(source.n_layers, target.n_layers) * module, RECORDED_BYTES)
    # Each is copied once when its texts are joined; a map has squares, a right side and a result.
    return 2 * (together + module) + 3 * 8 * width**2


def answering_s(base: BaseSize, machine: Machine, n: int, length: int, batch: int) -> float:
    """Seconds in which n texts of `length` tokens are written, some at a time."""
    n_steps = -(-n // batch) * length
    flops = 2 * base.n_parameters * batch / machine.flops_s
    step = max(base.weight_bytes / machine.bytes_s, flops) + base.n_layers * machine.layer_s
    return n_steps * step


def reading_s(base: BaseSize, machine: Machine, n: int, length: int, batch: int = _SCORED) -> float:
    """Seconds in which n texts of `length` tokens are read, some at a time."""
    flops = 2 * base.n_parameters * n * length / machine.flops_s
    n_batches = -(-n // batch)
    return max(flops, n_batches * base.weight_bytes / machine.bytes_s) + (
        n_batches * base.n_layers * machine.layer_s
    )


def starting_s(source: BaseSize, target: BaseSize, machine: Machine) -> float:
    """Seconds in which the process starts, and loads bases by turns."""
    loads = _LOADS / 2 * (machine.load_s(source) + machine.load_s(target))
    return machine.start_s + _STEPS * _STEP_S + loads


def drawing_s(target: BaseSize, machine: Machine, texts: Texts) -> float:
    """Seconds in which all inputs are made up."""
    calls = -(-texts.n_drawn // (_LISTS * _ITEMS))
    length = round(_LIST_TIMES * texts.list_length)
    return answering_s(target, machine, calls * _LISTS, length, _LISTS)


def teaching_s(
    source: BaseSize, machine: Machine, texts: Texts, *, is_judged: bool, is_compressed: bool
) -> float:
    """Seconds in which inputs are judged, and answered by the teacher."""
    total = reading_s(source, machine, texts.n, texts.prompt_length, _ANSWERED)
    total += answering_s(source, machine, texts.n, texts.expected_length, _ANSWERED)
    if is_judged:
        length = texts.input_length + _QUESTION_LENGTH
        total += reading_s(source, machine, texts.n_drawn, length, _ANSWERED)
    return total * (_TIMES_OF_DECODING if is_compressed else 1)


def measuring_s(target: BaseSize, machine: Machine, texts: Texts) -> float:
    """Seconds in which a moved adapter answers the held-out inputs."""
    n = max(texts.n // 5, 1)
    answering = answering_s(target, machine, n, texts.expected_length, _ANSWERED)
    return answering + 2 * reading_s(target, machine, n, texts.expected)


def mapping_s(source: BaseSize, target: BaseSize, machine: Machine, texts: Texts) -> float:
    """Seconds of an activation map: the source reads each text alone, the target twice, and each
    layer's maps are solved.
    """
    n_rows = min(texts.n * texts.expected, _MOST_ROWS)
    read = sum(
        reading_s(each, machine, texts.n, texts.expected, 1) for each in (source, target, target)
    )
    solved = _MODULES * source.n_layers * _SOLVED * source.width**2 * (n_rows + source.width)
    return machine.load_s(source) + machine.load_s(target) + read + solved / machine.flops_s


def training_s(target: BaseSize, machine: Machine, texts: Texts, recipe: Recipe) -> float:
    """Seconds in which a student learns four fifths of the texts in all epochs."""
    n_steps = recipe.epochs * -(-max(texts.n * 4 // 5, 1) // recipe.batch_size)
    flops = 2 * target.n_parameters * recipe.batch_size * texts.expected / machine.flops_s
    step = max(flops, target.weight_bytes / machine.bytes_s) * _TIMES_OF_TRAINING
    return machine.load_s(target) + n_steps * (step + target.n_layers * machine.trained_layer_s)
