"""The last step of a move: it publishes the moved adapter, or says why the old one stays."""

import json
from typing import Any, Final

from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.transfer.report import REPORT_FILE, TransferReport
from deltahub.registry.cards.card import CARD
from deltahub.registry.db.session import WriteSession
from deltahub.registry.errors import Conflict
from deltahub.registry.results import publish as results
from deltahub.registry.results.asked import granted_in
from deltahub.registry.results.publish import Branch, Result
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.adapters.declared_base import require_readable
from deltahub.workers.jobs.transfer.inputs import TransferInputs, load_inputs, title_of
from deltahub.workers.jobs.transfer.measuring import with_summary

_EDGE: Final = "upgrade"


def publish(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: {"published", "repository", "revision", "chosen", "agreed", "reasons", "report",
    "disagreements"}.

    Disagreements show inputs that are made up like private ones: they are in no file and in no
    report, and the registry gives them only to callers who may see them (jobs/requests.py).

    arguments: report: TransferReport; made: of the chosen way, as in making.py, None without one;
    notes: its sentences beside its own.
    """
    inputs = load_inputs(context, arguments)
    require_readable(context, inputs.grant.caller, inputs.source.revision_id)
    whole = TransferReport.model_validate_json(json.dumps(arguments["report"]))
    report = with_summary(whole.model_copy(update={"disagreements": ()}), arguments["notes"])
    chosen = report.rung(report.chosen)
    agreed = None if chosen is None else chosen.agreed
    commit = None
    if report.decision.is_published:
        made = arguments["made"]
        commit = _publish(context, inputs, report, (made["row"], made["config"]))
    return {
        "published": commit is not None,
        "repository": inputs.arguments.name if commit is not None else None,
        "revision": commit,
        "chosen": report.chosen.value,
        "agreed": None
        if agreed is None
        else {"value": agreed.value, "low": agreed.lower, "high": agreed.upper},
        "reasons": list(report.decision.reasons),
        "report": report.model_dump(mode="json"),
        "disagreements": [each.model_dump(mode="json") for each in whole.disagreements],
    }


def _publish(
    context: ComputeContext,
    inputs: TransferInputs,
    report: TransferReport,
    made: tuple[int, str],
) -> str:
    """made: the row of the weights, and adapter_config.json."""
    grant, target = inputs.grant, inputs.target
    row, config = made
    texts = {
        CARD: _card(inputs, report).encode(),
        CONFIG_FILE: config.encode(),
        REPORT_FILE: (report.model_dump_json(indent=1) + "\n").encode(),
    }
    message = f"Move {inputs.adapter.name} to {target.name} by {report.chosen.value}"
    parents = [inputs.adapter.revision_id]
    branch = Branch("main", message, {WEIGHTS_FILE: row}, texts, parents)
    base = (title_of(target), target.revision_id)
    result = Result(inputs.arguments.name, grant.is_private, "adapter", base, [branch], edge=_EDGE)

    def still_granted(session: WriteSession) -> None:
        if granted_in(session, context.registry.settings, context.job_id) != grant:
            raise Conflict("what the job may read or make has changed while it ran: retry it")

    return results.publish(context.registry, grant.caller, context.job_id, result, still_granted)


def _card(inputs: TransferInputs, report: TransferReport) -> str:
    lines = "\n".join(f"- {line}" for line in report.sentences())
    return (
        f"---\nbase_model: {inputs.target.name}\nbase_model_relation: adapter\n"
        f"library_name: peft\ntags:\n- lora\n---\n# {inputs.arguments.name}\n\n"
        f"`{inputs.adapter.name}`, which was trained on `{inputs.source.name}`, moved to"
        f" `{inputs.target.name}`.\n\n{lines}\n"
    )
