"""Which kinds of jobs people may ask for on pages, and the templates that a kind brings along.

A kind's folder, kinds/KIND (with _ for -), is found by its name: a new kind changes nothing here.

- form.html: the fields of its form. Without it the form is made from the kind's arguments.
- estimate.html: what a dry run has found, `estimate`: that part of its result, or all of it.
  Without the template it is shown as a list.
- report.html: what its result says. Without it the result is shown as a list.
- choices.html: a part of the form that depends on another field; see merge/form.html.
- in __init__.py, TITLE: what people call the kind; without it, its name in words.
- in __init__.py, REPORT_FILE: a file of the repository that the job made, which has the report;
  and Report: a pydantic model of it, because anybody may push a file of this name.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Final

from pydantic import BaseModel

from deltahub.methods.kinds.kind import JobArguments
from deltahub.methods.kinds.table import KINDS

_PACKAGE: Final = "deltahub.server.web.kinds"


@dataclass(frozen=True)
class KindPages:
    """The pages of one kind. form, report: the names of templates; None where it brings none."""

    kind: str
    title: str
    about: str
    form: str | None
    choices: str | None
    estimate: str | None
    report: str | None
    report_file: str | None
    report_type: type[BaseModel] | None


def arguments_of(kind: str) -> type[JobArguments] | None:
    """The arguments that may be asked for; None if people cannot ask for this kind."""
    return KINDS.get(kind)


@cache
def pages_of(kind: str) -> KindPages:
    """The pages of a kind, whether or not it brings any."""
    folder = kind.replace("-", "_")
    place = files(_PACKAGE) / folder
    names = ("form", "choices", "estimate", "report")
    found = [name for name in names if (place / f"{name}.html").is_file()]
    templates = {name: f"kinds/{folder}/{name}.html" for name in found}
    module = import_module(f"{_PACKAGE}.{folder}") if (place / "__init__.py").is_file() else None
    arguments = KINDS.get(kind)
    return KindPages(
        kind,
        getattr(module, "TITLE", kind.replace("_", " ").replace("-", " ").capitalize()),
        ((arguments.__doc__ if arguments else None) or "").partition("\n")[0],
        templates.get("form"),
        templates.get("choices"),
        templates.get("estimate"),
        templates.get("report"),
        getattr(module, "REPORT_FILE", None),
        getattr(module, "Report", None),
    )


def askable() -> list[KindPages]:
    """The kinds that people may ask for."""
    return [pages_of(kind) for kind in KINDS]
