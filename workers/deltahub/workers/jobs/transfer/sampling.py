"""Steps that make new inputs up, and judge them.

The target makes a round of inputs up, then the source judges it. What is recorded of a round is
what was drawn and how it was judged; the state of the sampling follows from all rounds.

Steps that plan and sift get all rounds again. That is little: a round asks for all that is missing
by the share that was accepted, so that there are few of them, and a step that may begin in another
process than the one before cannot refer to what that one knew.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.rejection import LOW_ACCEPTANCE, Rejection
from deltahub.registry.adapters.pools import Pool, keep_call, pooled_call
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.transfer.inputs import TransferInputs, load_inputs
from deltahub.workers.jobs.transfer.kits import UsableKit
from deltahub.workers.jobs.transfer.resident import resident

Round = Mapping[str, Any]
"""calls: the inputs of each call of the generator, and whether they are those of the pool
(`pooled`). margins: of those that were new, or None"""

# A step that generates ends after so long, so that little is lost when it is killed.
_STEP_S: Final = 60.0
# Of a new input that the source cannot read: no margin is so low.
_UNREADABLE: Final = -1e9
# The first round draws so many times the inputs that are wanted; a later one as many as the share
# of accepted inputs says, and a little more.
_FIRST_TIMES: Final = 2
_RESERVE: Final = 1.1
_LEAST_ROUND: Final = 32


def plan(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"is_done", "wanted": inputs to draw in the next round, "pooled": whether they are
    those of the pool, "accepted", "report"}.

    arguments: rounds. accepted, report: of a sampling that is done.
    """
    inputs = load_inputs(context, arguments)
    rounds: Sequence[Round] = arguments["rounds"]
    state = _state(inputs, rounds)
    pooled = _goes_on_with_pool(inputs, rounds)
    if state.is_done:
        report = state.report().model_copy(update={"shared": _n_shared(state, rounds)})
        return {
            "is_done": True,
            "wanted": 0,
            "pooled": pooled,
            "accepted": state.accepted,
            "report": report.model_dump(mode="json"),
        }
    missing, left = state.wanted - len(state.accepted), state.budget - state.drawn
    if inputs.judge is None:
        wanted = math.ceil(missing * _RESERVE)
    elif state.drawn == 0:
        wanted = _FIRST_TIMES * missing
    else:
        share = max(state.n_passed / state.drawn, state.wanted / state.budget)
        wanted = math.ceil(missing / share * _RESERVE)
    wanted = min(max(wanted, _LEAST_ROUND), left)
    told = {"wanted": wanted, "pooled": pooled}
    return {"is_done": False, "accepted": [], "report": None} | told


def generate(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"calls": the inputs of some calls of the generator}, which is the target.

    arguments: first: the number of the call; wanted: inputs to be drawn; pooled: whether calls are
    those of the pool, of which other moves may have kept some; device.
    """
    from deltahub.methods.transfer.models.encoding import fits
    from deltahub.methods.transfer.models.generating import Sampling
    from deltahub.methods.transfer.models.inventing import invent

    inputs = load_inputs(context, arguments)
    kits = inputs.pool if arguments["pooled"] else ()
    wanted: int = arguments["wanted"]
    drawn, n_known, calls, began = 0, 0, list[list[str]](), time.monotonic()

    def progress(done: int, total: int) -> None:
        context.report("make inputs up", drawn, wanted)

    def made_up(call: int, seeds: Sequence[str]) -> list[str]:
        base = resident(context, inputs, "target", arguments)
        found = invent(
            base.model,
            base.tokenizer,
            seeds,
            call,
            sampling=Sampling(seed=inputs.arguments.seed),
            on_progress=progress,
        )
        return [each for each in found if fits(base.model, base.tokenizer, each, inputs.contract)]

    while drawn < wanted and time.monotonic() - began < _STEP_S:
        call = arguments["first"] + len(calls)
        if not kits:
            calls.append(made_up(call, inputs.seeds))
        else:
            kit = kits[call % len(kits)]
            pool = _pool(inputs, kit, arguments["device"])
            found = pooled_call(context.registry, pool, call)
            n_known += found is not None
            if found is None:
                made = made_up(call, kit.kit.inputs)
                found = keep_call(context.registry, pool, call, made)
            calls.append(found)
            progress(0, 0)
        drawn += max(len(calls[-1]), 1)
    if n_known:
        context.log(f"{n_known} of {len(calls)} calls of the new base were answered before")
    return {"calls": calls}


def sift(context: ComputeContext, arguments: dict[str, Any]) -> list[str]:
    """Step: the new inputs of a round. arguments: rounds before it; calls: of this round."""
    inputs = load_inputs(context, arguments)
    return _taken(_state(inputs, arguments["rounds"]), arguments["calls"])


def judge(context: ComputeContext, arguments: dict[str, Any]) -> list[float]:
    """Step: log p(yes) - log p(no) of each of `texts`, by the discriminator. arguments: device."""
    from deltahub.methods.transfer.models.adapters import DISCRIMINATOR
    from deltahub.methods.transfer.models.discriminator import margins, question
    from deltahub.methods.transfer.models.encoding import fits, longest_input

    inputs = load_inputs(context, arguments)
    kit = inputs.judge
    assert kit is not None, "the step runs where a discriminator judges"
    base = resident(context, inputs, "source", arguments)
    if DISCRIMINATOR not in base.names:
        base.add(context, DISCRIMINATOR, kit.discriminator(context))
    texts: list[str] = arguments["texts"]
    most = longest_input(base.model) or math.inf

    def is_readable(text: str, contract: Contract) -> bool:
        asked = question(base.tokenizer, text, kit.kit.name)
        return len(asked.ids) < most and fits(base.model, base.tokenizer, text, contract)

    readable = [i for i, each in enumerate(texts) if is_readable(each, inputs.contract)]
    told = margins(
        base.model,
        base.tokenizer,
        [texts[i] for i in readable],
        kit.kit.name,
        lambda done, total: context.report("judge inputs", done, total),
    )
    found = [_UNREADABLE] * len(texts)
    for i, margin in zip(readable, told, strict=True):
        found[i] = margin
    return found


def _state(inputs: TransferInputs, rounds: Sequence[Round]) -> Rejection:
    """The sampling after these rounds."""
    # A seed of another kit is a private input, too, which nobody may learn.
    others = (text for each in inputs.pool for text in each.kit.inputs)
    seeds = list(dict.fromkeys([*inputs.seeds, *others]))
    state = Rejection.start(seeds, inputs.n, inputs.arguments.budget)
    for each in rounds:
        state.judge(_taken(state, each["calls"]), each["margins"])
    return state


def _pool(inputs: TransferInputs, kit: UsableKit, device: str) -> Pool:
    return Pool(kit.stored.id, inputs.target.revision_id, inputs.arguments.seed, device)


def _goes_on_with_pool(inputs: TransferInputs, rounds: Sequence[Round]) -> bool:
    """Whether the next round is of the pool: as long as the adapter's own discriminator accepts
    some of what the seeds of these kits bring forth.
    """
    if not inputs.is_pool_of_others:
        return bool(inputs.pool)
    margins = [each for told in rounds if told["pooled"] for each in told["margins"]]
    return not margins or sum(each > 0 for each in margins) >= LOW_ACCEPTANCE * len(margins)


def _n_shared(state: Rejection, rounds: Sequence[Round]) -> int:
    """Draws that were those of the pool."""
    found = sum(max(len(call), 1) for each in rounds if each["pooled"] for call in each["calls"])
    return min(found, state.drawn)


def _taken(state: Rejection, calls: Sequence[Sequence[str]]) -> list[str]:
    return [text for each in calls for text in state.take(each)]
