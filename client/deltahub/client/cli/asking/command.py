"""Commands that ask for a job: made from the argument schema of its kind."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from deltahub.client.cli.asking.compare import tell_comparison
from deltahub.client.cli.asking.upgrades import plan_lines
from deltahub.client.cli.output import Output, hub_options
from deltahub.client.hub import Hub
from deltahub.client.records import Job
from deltahub.methods.kinds.compare import CompareArguments
from deltahub.methods.kinds.kind import TEXT_FILE, JobArguments

_MOST_TEXT_BYTES: Final = 1 << 20


def command_of(
    arguments: type[JobArguments],
    positional: tuple[str, ...],
    command_class: type[click.Command] = click.Command,
    *,
    flags: Mapping[str, str] | None = None,
    without: tuple[str, ...] = (),
) -> click.Command:
    """The command of a kind. positional: the fields that are arguments, not options, in order.

    flags: options of fields that are not named like them. without: fields that no person sets.
    """
    named = flags or {}
    fields = arguments.model_fields

    @hub_options
    def run(
        hub: Hub,
        output: Output,
        priority: Any,
        idempotency_key: str | None,
        detach: bool,
        picture: Path | None = None,
        **given: Any,
    ) -> None:
        asked = {
            name: None
            if value in (None, ())
            else list(value)
            if isinstance(value, tuple)
            else value
            for name, value in given.items()
        }
        if picture is not None and given.get("method") != "compare":
            raise click.UsageError("--picture: only `deltahub merge compare` draws one")
        job = hub.ask(arguments.kind, asked, priority=priority, idempotency_key=idempotency_key)
        if detach:
            output.result(job.job, f"job {job.id}: `deltahub jobs watch {job.id}` shows it")
            return
        output.note(f"job {job.id}; Ctrl-C leaves it running, `deltahub jobs cancel` stops it")
        tell_result(hub, job.wait(progress=output.progress()), output, picture)

    command = command_class(arguments.kind, callback=run, help=arguments.__doc__)
    # hub_options has put its options on the function that it made.
    hub_parameters = getattr(run, "__click_params__", [])
    command.params = [_argument(name, fields[name]) for name in positional]
    command.params += [
        _option(name, field, named.get(name))
        for name, field in fields.items()
        if name not in (*positional, *without)
    ]
    command.params += [
        click.Option(
            ["--priority"],
            type=click.Choice(["low", "normal", "high"]),
            default="normal",
            help="Among your own jobs.",
        ),
        click.Option(["--idempotency-key"], help="The same key again gives the same job."),
        click.Option(["--detach"], is_flag=True, help="Do not wait for the job."),
        *_pictures(fields),
        *reversed(hub_parameters),
    ]
    return command


def _pictures(fields: Mapping[str, FieldInfo]) -> list[click.Option]:
    """The option of a kind that can draw."""
    if "eval" not in fields:
        return []
    return [
        click.Option(
            ["--picture"],
            type=click.Path(path_type=Path, dir_okay=False, writable=True),
            help="Write the picture of a comparison here, as SVG.",
        )
    ]


def tell_result(hub: Hub, job: Job, output: Output, picture: Path | None = None) -> None:
    """Print what a job that is done has made. picture: where to write the one in its result."""
    result = dict(job.result or {})
    if "comparison_id" in result:
        tell_comparison(hub, job, output)
        return
    lines = [f"{job.kind} job {job.id} is done"]
    lines += result_lines(result)
    if picture is not None:
        picture.write_text(str(result["picture"]), encoding="utf-8")
        lines.append(f"drew {picture}")
    output.result(job, *lines)


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """What a job's result says, as lines of text. A result of a newer hub says what is known."""
    from pydantic import ValidationError

    from deltahub.methods.adapters.conversion import ConversionReport
    from deltahub.methods.adapters.extraction import ExtractionReport
    from deltahub.methods.adapters.kit import Kit, KitEstimate
    from deltahub.methods.adapters.merged import MergedEstimate
    from deltahub.methods.comparing.report import ComparingEstimate
    from deltahub.methods.exporting.report import ExportEstimate, ExportReport
    from deltahub.methods.merging import frontier
    from deltahub.methods.merging.estimate import Estimate
    from deltahub.methods.merging.report import MergeReport
    from deltahub.methods.transfer.estimate import TransferEstimate
    from deltahub.methods.transfer.report import TransferReport

    if "moves" in result:
        return plan_lines(result)
    lines = []
    if result.get("published"):
        lines.append(f"made {result['repository']}@{str(result['revision'])[:12]}")
    if "name" in result:
        at = result.get("branch") or str(result.get("commit", ""))[:12]
        verb = "found" if result.get("is_found") else "made"
        lines.append(f"{verb} {result['name']}@{at}")
    with contextlib.suppress(ValidationError):
        if "estimate" in result:
            told = result["estimate"]
            kinds: dict[str, Any] = {
                "n_read": ComparingEstimate, "kit_bytes": KitEstimate, "n_weights": ExportEstimate,
                "n_draws": TransferEstimate, "n_changed": MergedEstimate,
            }  # fmt: skip
            kind = next((each for key, each in kinds.items() if key in told), Estimate)
            lines += kind.model_validate(told).sentences()
        if "kit" in result:
            lines += Kit.model_validate(result["kit"]).sentences()
        if "conversion" in result:
            lines += ConversionReport.model_validate(result["conversion"]).sentences()
        if "extraction" in result:
            lines += ExtractionReport.model_validate(result["extraction"]).sentences()
        if "export" in result:
            lines += ExportReport.model_validate(result["export"]).sentences()
        if "comparison" in result:
            lines += frontier.to_lines(frontier.Comparison.model_validate(result["comparison"]))
        if "published" in result:
            lines += TransferReport.model_validate(result["report"]).summary
        elif "report" in result:
            lines += MergeReport.model_validate(result["report"]).lines()
    return lines


def _argument(name: str, field: FieldInfo) -> click.Argument:
    if _is_list(field):
        return click.Argument([name], nargs=-1, required=True, metavar=f"{name.upper()}...")
    return click.Argument([name], type=_type(field), metavar=name.upper())


def _option(name: str, field: FieldInfo, flag: str | None = None) -> click.Option:
    flag = flag or f"--{name.replace('_', '-')}"
    help_text = field.description
    if _has_records(field):
        return click.Option([flag, name], type=_Lines(), help=help_text)
    if _is_text_file(field):
        return click.Option([flag, name], type=_Text(), help=help_text)
    if field.annotation is bool:
        return click.Option([flag], is_flag=True, help=help_text)
    if bool in get_args(field.annotation):
        off = f"--no-{name.replace('_', '-')}"
        return click.Option([f"{flag}/{off}", name], default=None, help=help_text)
    return click.Option(
        [flag, name],
        type=_type(field),
        multiple=_is_list(field),
        required=field.is_required(),
        help=help_text,
    )


class _Lines(click.Path):
    """A file with one JSON object a line, as a list of them."""

    name = "file"

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, readable=True)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        found = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                try:
                    found.append(json.loads(line))
                except ValueError as exc:
                    self.fail(f"{path}, line {number}: no JSON ({exc})", param, ctx)
        return found


class _Text(click.Path):
    """A file of text, as its contents."""

    name = "file"

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, readable=True)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        size = path.stat().st_size
        if size > _MOST_TEXT_BYTES:
            self.fail(
                f"{path} has {size:,} bytes: give a part of it, of at most {_MOST_TEXT_BYTES:,}",
                param,
                ctx,
            )
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as exc:
            self.fail(f"{path} is no text in UTF-8: {exc}", param, ctx)


def _is_text_file(field: FieldInfo) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and TEXT_FILE.items() <= extra.items()


def _has_records(field: FieldInfo) -> bool:
    """Whether the field is a list of objects."""
    lists = [each for each in get_args(field.annotation) if get_origin(each) is tuple]
    return any(
        isinstance(item, type) and issubclass(item, BaseModel)
        for each in lists
        for item in get_args(each)
    )


def _is_list(field: FieldInfo) -> bool:
    kinds = (field.annotation, *get_args(field.annotation))
    return any(get_origin(each) is tuple for each in kinds)


def _type(field: FieldInfo) -> Any:
    choices = get_args(field.annotation)
    if choices and all(isinstance(each, str) for each in choices):
        return click.Choice(choices)
    return field.annotation if field.annotation in (int, float) else str


compare = command_of(CompareArguments, ("first", "second"))
