"""The table of an upgrade: what each cell says of a way, and the sentences below the table."""

from datetime import UTC, datetime
from typing import Any

from deltahub.registry.upgrades.shown import MoveInfo
from deltahub.server.web.upgrades.pages import RUNGS, Row, cells_of

NO_KIT = "lab/a has no kit: make one"
NO_TASK = "nothing shows what its task looks like"


def move(**fields: Any) -> MoveInfo:
    rungs = [{"rung": "freeze", "why_not": None, "seconds": 0.0}]
    rungs += [{"rung": each, "why_not": NO_TASK, "seconds": 1.0} for each in RUNGS[1:]]
    usual: dict[str, Any] = {
        "id": 1, "adapter": "lab/a", "adapter_commit": "1" * 40, "teacher": None,
        "state": "proposed", "rungs": rungs, "measured": (), "seconds": None,
        "memory_bytes": None, "device": None, "missing": (NO_KIT,), "notes": (), "why_not": None,
        "needs_prompts": True, "chosen": None, "agreed": None, "job_id": None, "result": None,
        "result_commit": None, "why": None, "changed_at": datetime.now(UTC), "may_decide": True,
    }  # fmt: skip
    return MoveInfo(**usual | fields)


def row(**fields: Any) -> Row:
    found = move(**fields)
    return Row(found, cells_of(found))


def test_every_no_has_its_reason_below_the_table_once() -> None:
    assert row().told == (NO_KIT, f"copy, activation_map, trans_lora, titok: {NO_TASK}")
    # The plan's own reason says the same for all ways.
    assert row(why_not=f"{NO_TASK}; {NO_KIT}").told == (NO_KIT, f"{NO_TASK}; {NO_KIT}")
    measured = [
        {"rung": "copy", "agreed": {"value": 0.9}},
        {"rung": "titok", "why_not": "its tokenizer tells no places"},
    ]
    told = row(state="kept", measured=measured, missing=(), rungs=(), why="it loses too much").told
    assert told == ("it loses too much", "titok: its tokenizer tells no places")


def test_a_move_that_was_given_a_task_does_not_say_no_to_each_way() -> None:
    assert [cell and cell.why_not for cell in row().cells] == [None, *[NO_TASK] * 4]
    for state in ("approved", "queued", "running"):
        assert row(state=state).cells == (None,) * len(RUNGS)
    # One way that applies was planned with what the move has.
    planned = [{"rung": "copy", "why_not": None, "seconds": 2.0},
               {"rung": "titok", "why_not": NO_TASK, "seconds": 1.0}]  # fmt: skip
    cells = row(state="running", rungs=planned).cells
    assert cells[1] is not None
    assert cells[4] is not None
    assert (cells[1].seconds, cells[4].why_not) == (2.0, NO_TASK)
