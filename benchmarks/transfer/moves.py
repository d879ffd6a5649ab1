"""One move of an adapter to a new base by every method, measured with labels that a hub lacks.

What is made once for all methods: inputs that the target makes up, the discriminator's choice of
them, and the old adapter's completions. A fifth of the chosen inputs is held out; every method is
measured on it as a hub does, and on private tests, which tell the truth.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from benchmarks.transfer.bases import Base
from benchmarks.transfer.owner import BATCH, Owned, Recipe, answers_of
from benchmarks.transfer.ports import activation_map, copied
from benchmarks.transfer.tasks import other_numbers
from benchmarks.transfer.world import NAME
from deltahub.methods.errors import CannotTransfer
from deltahub.methods.transfer.measures.agreement import agreement, flips
from deltahub.methods.transfer.measures.distances import squared_mmd
from deltahub.methods.transfer.measures.gate import Rung, choose_start
from deltahub.methods.transfer.measures.intervals import Share
from deltahub.methods.transfer.models.adapters import STUDENT, TEACHER, state_of
from deltahub.methods.transfer.models.discriminator import margins
from deltahub.methods.transfer.models.embeddings import embed
from deltahub.methods.transfer.models.excess import choose as choose_tokens
from deltahub.methods.transfer.models.excess import encode_chosen
from deltahub.methods.transfer.models.generating import Sampling
from deltahub.methods.transfer.models.inventing import invent
from deltahub.methods.transfer.models.students import (
    Labelled,
    encode_all,
    hold_out,
    label,
    train_student,
)
from deltahub.methods.transfer.rejection import Rejection, sample

Method = Literal[
    "source", "target", "copy", "activation map", "Trans-LoRA", "warm start", "TiTok",
    "unfiltered", "seeds only", "random inputs", "retrained",
]  # fmt: skip
METHODS: Final[tuple[Method, ...]] = get_args(Method)
_PORTS: Final[dict[Rung, Method]] = {
    Rung.COPY: "copy",
    Rung.ACTIVATION_MAP: "activation map",
}


@dataclass(frozen=True)
class Row:
    """One method of one move. right: of n_tests. agreed: with the old adapter, of n_held_out
    made-up inputs. broken, repaired: tests that only the old adapter, or only the new one, answers
    rightly. The counts are null where the method is not possible, and why_not says the reason.
    start: what the adapter of a warm start began as.
    """

    task: str
    seed: int
    target: str
    method: str
    n_tests: int
    right: int | None
    n_held_out: int
    agreed: int | None
    broken: int | None
    repaired: int | None
    cpu_seconds: float
    why_not: str = ""
    start: str = ""


@dataclass(frozen=True)
class Inputs:
    """Made once for a move. pool: what passed no filter. Each is labelled by the old adapter."""

    learnt: list[Labelled]
    held_out: list[Labelled]
    pool: list[Labelled]
    others: list[Labelled]
    seeds: list[Labelled]
    draw_seconds: float
    filter_seconds: float
    label_seconds: float  # of one input
    figures: dict[str, float]

    @property
    def unfiltered(self) -> list[Labelled]:
        """As many as are learnt."""
        return self.pool[: len(self.learnt)]


class Move:
    """An adapter, and the base that it is moved to. pool: seeds of kits, from which inputs are made
    up by turns, in place of its own. known: call -> its inputs, of earlier moves with this pool.
    """

    def __init__(
        self,
        owned: Owned,
        target: Base,
        recipe: Recipe,
        pool: Sequence[Sequence[str]] | None = None,
        known: dict[int, list[str]] | None = None,
    ) -> None:
        self.owned, self.target, self.recipe = owned, target, recipe
        self.pool = [owned.seeds] if pool is None else pool
        self.known = {} if known is None else known
        self.seed = owned.task.seed
        self._source = owned.source()
        self._start = ""

    def make_inputs(self) -> Inputs:
        """CannotTransfer if the discriminator accepts too few."""
        task, kit_seeds = self.owned.task, self.owned.seeds
        generator, reading = self.target.model(), self.owned.base.tokenizer
        spent = {"draw": 0.0, "filter": 0.0}
        fresh: list[str] = []

        def draw(call: int) -> list[str]:
            began = time.process_time()
            if call not in self.known:
                self.known[call] = invent(
                    generator, self.target.tokenizer, self.pool[call % len(self.pool)], call,
                    n_lists=self.recipe.n_lists, sampling=Sampling(seed=self.seed),
                )  # fmt: skip
            spent["draw"] += time.process_time() - began
            return self.known[call]

        def judge(texts: Sequence[str]) -> list[float]:
            began = time.process_time()
            fresh.extend(texts)
            found = margins(self._source, reading, texts, NAME)
            spent["filter"] += time.process_time() - began
            return found

        n = self.recipe.n_private
        seeds = list(dict.fromkeys([*kit_seeds, *(text for each in self.pool for text in each)]))
        state = sample(Rejection.start(seeds, n, self.recipe.budget_times), draw, judge)
        state.require_any(5)
        known = set(state.accepted)
        learnt, held_out = hold_out(state.accepted, self.seed)
        # TiTok keeps half of what it is given, and so learns from as many inputs as Trans-LoRA.
        pool = fresh[: 2 * len(learnt)]
        others = other_numbers(len(learnt), self.seed)
        began = time.process_time()
        groups = [learnt, held_out, pool, others, kit_seeds]
        labelled = [self._labelled(each) for each in groups]
        label_s = (time.process_time() - began) / sum(map(len, groups))
        real, made, kept = (
            embed(self._source, reading, each)
            for each in ([each.text for each in self.owned.private], fresh[:1000], state.accepted)
        )
        gamma = self.owned.sketch.gamma
        report = state.report()
        figures = {
            "AUC of the discriminator": self.owned.about.auc,
            "drawn": float(report.drawn),
            "accepted": report.acceptance,
            "of the task, before the filter": _share(map(task.has, fresh)),
            "of the task, after it": _share(map(task.has, known)),
            "squared MMD to the private inputs, before": squared_mmd(made, real, gamma),
            "squared MMD to the private inputs, after": squared_mmd(kept, real, gamma),
            "teacher right on held-out inputs": _share(
                each.completion == task.answer(each.text)
                for each in labelled[1]
                if len(each.text) == len(task.places) and each.text.isdecimal()
            ),
        }
        return Inputs(
            labelled[0], labelled[1], labelled[2], labelled[3], labelled[4],
            draw_seconds=spent["draw"], filter_seconds=spent["filter"],
            label_seconds=label_s, figures=figures,
        )  # fmt: skip

    def measure(self, method: Method, inputs: Inputs) -> Row:
        """Do the move, and answer the held-out inputs and the private tests."""
        began, self._start = time.process_time(), ""
        try:
            model, adapter, tokenizer = self._made(method, inputs)
        except CannotTransfer as exc:
            return self._row(method, inputs, time.process_time() - began, None, why_not=str(exc))
        spent = time.process_time() - began + self._shared_seconds(method, inputs)
        found = [
            answers_of(model, tokenizer, adapter, self.owned.task, each)
            for each in (self.owned.tests, inputs.held_out)
        ]
        return self._row(method, inputs, spent, found)

    def _made(self, method: Method, inputs: Inputs) -> tuple[Any, str | None, Any]:
        """(model, its adapter or None, tokenizer)"""
        reading = self.target.tokenizer
        if method == "source":
            return self._source, TEACHER, self.owned.base.tokenizer
        if method == "target":
            return self.target.model(), None, reading
        if method == "copy":
            return copied(self.owned, self.target), STUDENT, reading
        if method == "activation map":
            texts = [
                self.owned.task.contract.prompt_of(each.text) + each.completion
                for each in inputs.learnt
            ]
            model = activation_map(self.owned, self._source, self.target, texts)
            return model, STUDENT, reading
        if method == "TiTok":
            chosen = choose_tokens(
                self._source, self.owned.base.tokenizer, inputs.pool, self.owned.task.contract
            )
            is_same = self.target.reading == self.owned.base.reading
            examples = encode_chosen(
                reading, chosen, self.owned.task.contract, is_same_tokenizer=is_same
            )
        else:
            given = {
                "Trans-LoRA": inputs.learnt,
                "warm start": inputs.learnt,
                "unfiltered": inputs.unfiltered,
                "seeds only": inputs.seeds,
                "random inputs": inputs.others,
                "retrained": self.owned.private,
            }[method]
            examples = encode_all(reading, given, self.owned.task.contract)
        training = self.recipe.training(len(examples), self.seed)
        start = self._warm_start(inputs) if method == "warm start" else None
        model, _ = train_student(self.target.model(), examples, training, warm_start=start)
        return model, STUDENT, reading

    def _warm_start(self, inputs: Inputs) -> dict[str, Any] | None:
        """The tensors of the way without a training that is chosen on the held-out inputs."""
        wanted, contract = [each.completion for each in inputs.held_out], self.owned.task.contract

        def agreed(method: Method) -> tuple[Share, Any]:
            model, adapter, reading = self._made(method, inputs)
            given = answers_of(model, reading, adapter, self.owned.task, inputs.held_out)
            return agreement(wanted, given, contract), model

        ports: dict[Rung, tuple[Share, Any]] = {}
        for rung, method in _PORTS.items():
            try:
                ports[rung] = agreed(method)
            except CannotTransfer:
                continue
        shares = [(rung, share) for rung, (share, _) in ports.items()]
        start = choose_start(shares, agreed("target")[0])
        self._start = "" if start is None else start.value
        return None if start is None else state_of(ports[start][1], STUDENT)

    def _shared_seconds(self, method: Method, inputs: Inputs) -> float:
        """What the method's part in the inputs took."""
        n = len(inputs.learnt)
        of_pool = inputs.draw_seconds * len(inputs.pool) / inputs.figures["drawn"]
        drawing = {
            "activation map": inputs.draw_seconds + inputs.filter_seconds,
            "Trans-LoRA": inputs.draw_seconds + inputs.filter_seconds,
            "warm start": inputs.draw_seconds + inputs.filter_seconds,
            "TiTok": of_pool,
            "unfiltered": of_pool / 2,
        }.get(method, 0.0)
        labelled = {
            "activation map": n,
            "Trans-LoRA": n,
            "warm start": n,
            "TiTok": 2 * n,
            "unfiltered": n,
            "seeds only": len(inputs.seeds),
            "random inputs": n,
        }.get(method, 0)
        return drawing + labelled * inputs.label_seconds

    def _row(
        self,
        method: Method,
        inputs: Inputs,
        seconds: float,
        found: Sequence[Sequence[str]] | None,
        why_not: str = "",
    ) -> Row:
        contract, tests = self.owned.task.contract, self.owned.tests
        right = agreed = broken = repaired = None
        if found is not None:
            wanted = [each.completion for each in tests]
            right = agreement(wanted, found[0], contract).hits
            agreed = agreement([e.completion for e in inputs.held_out], found[1], contract).hits
            old = answers_of(
                self._source, self.owned.base.tokenizer, TEACHER, self.owned.task, tests
            )
            changed = flips(wanted, old, found[0], contract)
            broken, repaired = changed.negative, changed.positive
        return Row(
            self.owned.task.name, self.seed, self.target.name, method, len(tests), right,
            len(inputs.held_out), agreed, broken, repaired, round(seconds, 2), why_not,
            self._start,
        )  # fmt: skip

    def _labelled(self, texts: Sequence[str]) -> list[Labelled]:
        return label(
            self._source, self.owned.base.tokenizer, texts, self.owned.task.contract,
            batch_size=BATCH,
        )  # fmt: skip


def _share(cases: Iterable[bool]) -> float:
    found = list(cases)
    return sum(found) / len(found) if found else 0.0


def stored(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` returns, from the file if it is there: a run that was ended goes on from it."""
    if not path.is_file():
        text = json.dumps(make())
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".new")
        scratch.write_text(text)
        scratch.rename(path)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def stored_inputs(move: Move, folder: Path) -> Inputs:
    """The inputs of a move."""
    found = stored(folder / "inputs.json", lambda: asdict(move.make_inputs()))
    for key in ("learnt", "held_out", "pool", "others", "seeds"):
        found[key] = [Labelled(**each) for each in found[key]]
    return Inputs(**found)


def stored_row(move: Move, method: Method, folder: Path) -> Row:
    """The row of one method."""
    path = folder / f"{method.replace(' ', '-')}.json"
    return Row(**stored(path, lambda: asdict(move.measure(method, stored_inputs(move, folder)))))
