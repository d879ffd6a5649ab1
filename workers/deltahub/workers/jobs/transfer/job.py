"""The job `transfer_adapter`: its steps, in their order.

1. Find which ways apply, and estimate memory and time (check.py).
2. In rounds: the target makes inputs up, the source's discriminator judges them (sampling.py).
3. The old adapter answers them; four fifths are learnt, one fifth measures (teaching.py).
4. Make the adapters of the target that need no training (making.py, mapping.py). Measure them, and
   the target alone, on the held-out inputs (measuring.py).
5. Train the others, which may start from the best of these, and measure them, too.
6. Publish the chosen one, or say why the old one stays (publish.py).

One base is in memory at a time. Steps record texts, numbers and rows of files: a killed job goes on
at its first unfinished step.

result {"published", "repository", "revision", "chosen", "agreed", "reasons", "report",
"disagreements"}, or {"estimate"} of a dry run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from deltahub.methods.kinds.transfer_adapter import TransferAdapterArguments
from deltahub.methods.transfer.estimate import TransferEstimate
from deltahub.methods.transfer.measures.gate import Rung, choose_start
from deltahub.methods.transfer.measures.intervals import Share
from deltahub.workers.context import JobContext

_HERE: Final = "deltahub.workers.jobs.transfer"
# The steps above, as whoever waits is told.
_N_STEPS: Final = 6
# Texts of one step that judges or answers, so that little is lost when it is killed.
_JUDGED, _ANSWERED = 512, 128
# Inputs whose embeddings are compared, of each kind.
_COMPARED: Final = 500
# Shares of the job: until all inputs are there, are answered, and the ways are made.
_CHECKED, _DRAWN, _LABELLED, _PORTED, _MADE, _MEASURED = 0.02, 0.3, 0.4, 0.5, 0.9, 0.98
# The ways without a training, and their steps.
_PORTS: Final = {
    Rung.COPY: "making:copy",
    Rung.ACTIVATION_MAP: "mapping:map_activations",
}

_UNLISTED: Final = (
    "no disagreements are listed, because inputs were made up from kits of other adapters, too"
)

Pair = tuple[str, str, bool]
"""an input, the old adapter's completion, and whether that ended by itself"""


def transfer_adapter(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Run the job. payload: as registry/results/asked.py writes it."""
    arguments = TransferAdapterArguments.model_validate(payload["arguments"])
    context.begin_step(1, _N_STEPS)
    checked = context.compute("look at the models", f"{_HERE}.check:check", {}, (0, _CHECKED))
    if arguments.dry_run:
        return {"estimate": checked["estimate"]}
    estimate = TransferEstimate.model_validate(checked["estimate"])
    context.step("tell the cost", lambda: _tell(context, estimate.sentences()))
    steps = {key: checked[key] for key in ("device", "compressed", "kit", "pool")}
    notes = [_UNLISTED] if checked["is_pool_of_others"] else []
    move = _Move(context, estimate, steps, arguments.start == "auto", notes)
    result = move.run()
    context.tell_memory()
    return result


@dataclass
class _Move:
    """steps: arguments of every step. has_warm_start: whether a student may start from another.
    notes: sentences for the report.
    """

    context: JobContext
    estimate: TransferEstimate
    steps: dict[str, Any]
    has_warm_start: bool
    notes: Sequence[str]

    def run(self) -> dict[str, Any]:
        rungs: dict[str, dict[str, Any]] = {
            each.rung.value: {"why_not": each.why_not}
            for each in self.estimate.rungs
            if each.why_not is not None
        }
        made: dict[str, dict[str, Any]] = {}
        given: dict[str, Any] = {
            "held_out": [], "alone": None, "sampling": None, "distances": None, "likeness": None,
        }  # fmt: skip
        notes = [*self.estimate.missing, *self.notes]
        possible = list(self.estimate.possible)
        if possible:
            texts, drawn = self._sample(given, notes)
            pairs = self._label(texts)
            learnt, held_out = self._divide(pairs)
            given["held_out"] = held_out
            if not held_out:
                few = f"{len(pairs)} inputs are too few to learn some and measure on others"
                rungs |= {rung.value: {"why_not": few} for rung in possible}
                possible = []
            elif given["sampling"]["judged"] > given["sampling"]["accepted"]:
                both = {"accepted": texts[:_COMPARED], "drawn": drawn[:_COMPARED]}
                given["distances"] = self._compute("compare the inputs", "teaching:distances", both)
        if Rung.TRANS_LORA in possible and not given["sampling"]["accepted"]:
            why = "the discriminator accepted no input: make the kit again with more seeds"
            rungs[Rung.TRANS_LORA.value] = {"why_not": why}
            possible.remove(Rung.TRANS_LORA)
        if possible:
            made, told = self._try(possible, learnt, given)
            given["likeness"] = made.get(Rung.COPY.value, {}).get("likeness")
            rungs |= told
        rungs = {rung.value: rungs[rung.value] for rung in Rung if rung.value in rungs}
        self.context.begin_step(6, _N_STEPS)
        asked = given | {"rungs": rungs, "notes": notes}
        report = self._compute("decide", "measuring:report", asked, (_MEASURED, 0.99))
        last = {"report": report, "made": made.get(report["chosen"]), "notes": notes}
        result: dict[str, Any] = self._compute("publish", "publish:publish", last, (0.99, 1))
        return result

    def _sample(self, given: dict[str, Any], notes: list[str]) -> tuple[list[str], list[str]]:
        """(the inputs that are kept, all that were drawn). Tells in `given` how it went."""
        self.context.begin_step(2, _N_STEPS)
        rounds: list[dict[str, Any]] = []
        call, n_judged, share = 0, 0, (_CHECKED, _DRAWN)
        is_judged = self._is_judged
        while True:
            asked = {"rounds": rounds}
            planned = self._compute(f"plan round {len(rounds)}", "sampling:plan", asked, share)
            if planned["is_done"]:
                break
            wanted, calls = planned["wanted"], list[list[str]]()
            while wanted > 0:
                step = {"first": call, "wanted": wanted, "pooled": planned["pooled"]}
                name = f"make inputs up from {call}"
                found = self._compute(name, "sampling:generate", step, share)["calls"]
                calls += found
                call += len(found)
                wanted -= sum(max(len(each), 1) for each in found)
            margins: list[float] | None = None
            if is_judged:
                step = {"rounds": rounds, "calls": calls}
                fresh = self._compute(f"sift round {len(rounds)}", "sampling:sift", step, share)
                margins = []
                for start in range(0, len(fresh), _JUDGED):
                    step = {"texts": fresh[start : start + _JUDGED]}
                    name = f"judge inputs from {n_judged}"
                    margins += self._compute(name, "sampling:judge", step, share)
                    n_judged += len(step["texts"])
            rounds.append({"calls": calls, "margins": margins, "pooled": planned["pooled"]})
        given["sampling"] = planned["report"]
        accepted: list[str] = planned["accepted"]
        drawn = list(dict.fromkeys(t for each in rounds for c in each["calls"] for t in c))
        if accepted:
            return accepted, drawn
        notes.append(
            "the discriminator accepted no input: the ways were measured on inputs that it refused,"
            " which may be unlike the task"
        )
        return drawn[: self.estimate.n_inputs], drawn

    @property
    def _is_judged(self) -> bool:
        """Whether there is a discriminator: what a kit lacks is told where there is none."""
        return not self.estimate.missing

    def _label(self, texts: Sequence[str]) -> list[Pair]:
        self.context.begin_step(3, _N_STEPS)
        pairs: list[Pair] = []
        for start in range(0, len(texts), _ANSWERED):
            some = texts[start : start + _ANSWERED]
            step = {"texts": some}
            share = (_DRAWN, _LABELLED)
            answers = self._compute(f"answer from {start}", "teaching:label", step, share)
            pairs += [
                (text, *answer)
                for text, answer in zip(some, answers, strict=True)
                if answer is not None
            ]
        return pairs

    def _divide(self, pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
        found = self._compute("hold inputs out", "teaching:divide", {"n": len(pairs)})
        return [pairs[i] for i in found["learnt"]], [pairs[i] for i in found["held_out"]]

    def _try(
        self, possible: Sequence[Rung], learnt: Sequence[Pair], given: dict[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        """(an adapter of the target by each way, or why there is none; what each one answers).

        In `given`: what the target alone answers. Ways without a training come first, because a
        student may start from the best of them.
        """
        self.context.begin_step(4, _N_STEPS)
        chosen: dict[str, Any] = {}
        asked: dict[str, Any] = {"learnt": list(learnt)}
        if Rung.TITOK in possible:
            # The source answers questions about its tokens while it is in memory.
            share = (_LABELLED, _LABELLED)
            chosen = self._compute("find the excess", "teaching:choose", asked, share)
        held_out = {"held_out": given["held_out"]}
        ports = [rung for rung in possible if rung in _PORTS]
        students = [rung for rung in possible if rung not in _PORTS]
        made: dict[str, dict[str, Any]] = {}
        told: dict[str, dict[str, Any]] = {}
        for rung in ports:
            name = f"make {rung.value}"
            made[rung.value] = self._compute(name, _PORTS[rung], asked, (_LABELLED, _PORTED))
        alone = held_out | {"rung": None, "made": None}
        found = self._compute("measure the new base", "measuring:answer", alone, (_PORTED, _PORTED))
        given["alone"] = found["completions"]
        for rung in ports:
            told[rung.value] = self._answer(rung, made[rung.value], held_out, (_PORTED, _PORTED))
        start = self._start(told, found) if students else None
        self.context.begin_step(5, _N_STEPS)
        for place, rung in enumerate(students):
            if rung == Rung.TITOK and "why_not" in chosen:
                made[rung.value] = chosen
                continue
            lessons = {"chosen": chosen["chosen"]} if rung == Rung.TITOK else asked
            step = lessons | {"start": None if start is None else [start, made[start]]}
            begin, end = (
                _PORTED + (_MADE - _PORTED) * each / len(students) for each in (place, place + 1)
            )
            made[rung.value] = self._compute(
                f"make {rung.value}", "making:train", step, (begin, end)
            )
        for rung in students:
            told[rung.value] = self._answer(rung, made[rung.value], held_out, (_MADE, _MEASURED))
        return made, told

    def _answer(
        self,
        rung: Rung,
        made: dict[str, Any],
        held_out: dict[str, Any],
        share: tuple[float, float],
    ) -> dict[str, Any]:
        """What a way answers, or why it does not."""
        if "why_not" in made:
            return {"why_not": made["why_not"]}
        step = held_out | {"rung": rung.value, "made": made}
        told: dict[str, Any] = self._compute(
            f"measure {rung.value}", "measuring:answer", step, share
        )
        if "why_not" in told:
            return told
        return told | {
            "seconds": told["seconds"] + made["seconds"],
            "peak_bytes": made["peak_bytes"],
            "start": made.get("start"),
        }

    def _start(self, told: dict[str, dict[str, Any]], alone: dict[str, Any]) -> str | None:
        """The way without a training from which students start; None for a fresh start."""
        if not self.has_warm_start:
            return None
        ports = [
            (Rung(name), Share.model_validate(each["agreed"]))
            for name, each in told.items()
            if "agreed" in each
        ]
        found = choose_start(ports, Share.model_validate(alone["agreed"]))
        return None if found is None else found.value

    def _compute(
        self,
        name: str,
        step: str,
        arguments: dict[str, Any],
        share: tuple[float, float] = (_LABELLED, _LABELLED),
    ) -> Any:
        return self.context.compute(name, f"{_HERE}.{step}", arguments | self.steps, share)


def _tell(context: JobContext, sentences: Sequence[str]) -> None:
    for sentence in sentences:
        context.log(sentence)
