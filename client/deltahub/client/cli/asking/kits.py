"""`deltahub adapter kit`: make, push, show and delete the kit of an adapter."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from pydantic import ValidationError

from deltahub.client.adapters import KitFacts
from deltahub.client.cli.output import Output, confirm, hub_options
from deltahub.client.errors import InvalidArgument
from deltahub.client.hub import Hub
from deltahub.client.names import named_revision
from deltahub.client.progress import human_size
from deltahub.methods.errors import MethodError

if TYPE_CHECKING:
    from deltahub.client.transfer import KitOptions
    from deltahub.methods.transfer.kit import Seed

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("adapter", metavar="FOLDER|NAME[@REVISION]")
@click.option("--base", metavar="FOLDER|NAME[@REVISION]", help="The base of the adapter.")
@click.option("--base-name", metavar="NAME[@COMMIT]", help="What the hub calls a base in a folder.")
@click.option(
    "--data",
    type=_FILE,
    help='The private examples, one on each line: {"input": ..., "completion": ...}. completion may'
    " be missing.",
)
@click.option(
    "--tests",
    type=_FILE,
    help="Examples with completions that the adapter was not trained on, to measure its accuracy.",
)
@click.option("--name", help="Of the private dataset; the discriminator is asked about it.")
@click.option(
    "--output", "folder", type=_FOLDER, help="A folder for the kit; by default ./NAME-kit."
)
@click.option("--push", is_flag=True, help="Push the kit to the hub when it is made.")
@click.option("--to", metavar="NAME", help="The adapter in the hub, if ADAPTER is a folder.")
@click.option("--from", "made", type=_FOLDER, help="Push this kit, which was made before.")
@click.option("--delete", "is_delete", is_flag=True, help="Delete the adapter's kit from the hub.")
@click.option("--yes", is_flag=True, help="Do not ask. With --data this needs --seeds.")
@click.option(
    "--seeds",
    type=_FILE,
    help="The examples that the kit stores as they are, in the form of --data. By default some are"
    " picked, and you are asked.",
)
@click.option("--n-seeds", type=click.IntRange(1, 64), default=5, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option("--prompt", help="What a model is given; {input} stands for the input.")
@click.option("--max-new-tokens", type=click.IntRange(1, 4096), help="Of a completion.")
@click.option("--stop", multiple=True, help="A text that ends a completion.")
@click.option("--answer-pattern", help="A regular expression that finds the answer.")
@click.option("--rank", type=click.IntRange(1, 4096), help="Of the discriminator.")
@click.option("--targets", multiple=True, help="A module that the discriminator adapts.")
@click.option("--learning-rate", type=float, help="Of the discriminator.")
@click.option("--epochs", type=click.IntRange(1, 1000), help="Of the discriminator.")
@click.option("--batch-size", type=click.IntRange(1, 1024), help="Of the discriminator.")
@click.option("--noise", type=float, help="Of the sketch of the private inputs; 0 hides nothing.")
@click.option("--no-sketch", is_flag=True, help="Leave the sketch out.")
@click.option(
    "--device", default="cpu", show_default=True, help="cpu, a GPU such as cuda:0, or auto."
)
@click.option("--allow-weak", is_flag=True, help="Also with a discriminator that guesses.")
@hub_options
def kit(
    adapter: str,
    data: Path | None,
    made: Path | None,
    to: str | None,
    push: bool,
    is_delete: bool,
    yes: bool,
    hub: Hub,
    output: Output,
    **given: Any,
) -> None:
    """Make what a later move of an adapter to another base needs, from its private data.

    With --data: make a kit on this machine, and push it with --push. With --from: push a kit that
    was made before. With --delete: delete the hub's. With none of these: show what the hub has.
    The private data stay on this machine, except for the examples that you let be stored; see
    docs/upgrades.md for what a kit may leak.
    """
    if sum((data is not None, made is not None, is_delete)) > 1:
        raise click.UsageError("--data, --from and --delete are three different things")
    if data is not None:
        _make(adapter, data, to if push else None, push, yes, hub, output, given)
        return
    if push or given["seeds"] is not None:
        raise click.UsageError("--push and --seeds belong to --data: name the private examples")
    name = _name_in_hub(adapter, to)
    if is_delete:
        confirm(f"the kit of {name}", output, is_yes=yes)
        hub.delete_kit(name)
        output.result({"name": name, "deleted": True}, f"the kit of {name} is deleted")
        return
    found = hub.kit(name) if made is None else hub.push_kit(made, name)
    output.result(found, *_told(name, found))


def _make(
    adapter: str,
    data: Path,
    to: str | None,
    is_pushed: bool,
    is_yes: bool,
    hub: Hub,
    output: Output,
    given: dict[str, Any],
) -> None:
    from deltahub.client.transfer import make_kit

    if given["base"] is None or given["name"] is None:
        raise click.UsageError("--data needs --base and --name")
    seeds = None if given["seeds"] is None else _seeds_of(given["seeds"])
    can_ask = not is_yes and not output.is_json and sys.stdin.isatty()
    if seeds is None and not can_ask:
        raise click.UsageError(
            "nobody can be asked which private examples may be stored: name them by --seeds FILE"
            " and --yes"
        )
    if seeds is not None and not can_ask and not is_yes:
        raise click.UsageError("storing these seeds needs --yes here: nobody can be asked")
    name = _name_in_hub(adapter, to) if is_pushed else None
    folder = given["folder"] or Path(f"{given['name']}-kit")
    try:
        done = make_kit(
            adapter,
            given["base"],
            data,
            name=given["name"],
            output=folder,
            redact=_ask if can_ask else None,
            seeds=seeds,
            tests=given["tests"],
            options=_options(given),
            hub=hub,
            progress=output.progress(),
        )
    except ValidationError as exc:
        raise InvalidArgument(f"the kit cannot be written: {_first(exc)}") from exc
    except MethodError as exc:
        raise InvalidArgument(str(exc)) from exc
    output.note(f"{folder}: at most {human_size(done.peak_bytes)} of memory were used")
    facts = None if name is None else hub.push_kit(folder, name)
    report = {
        "folder": str(folder),
        "auc": done.kit.discriminator.auc,
        "n_examples": done.kit.n_examples,
        "source_accuracy": done.kit.source_accuracy,
        "pushed": None if facts is None else dataclasses.asdict(facts),
    }
    pushed = [] if name is None else [f"it is the kit of {name} now, which the hub shows nobody"]
    output.result(report, f"{folder}:", *done.sentences(), *pushed)


def _options(given: dict[str, Any]) -> "KitOptions":
    from deltahub.client.transfer import KitOptions
    from deltahub.methods.transfer.contract import Contract
    from deltahub.methods.transfer.recipe import Recipe

    def named(*names: str) -> dict[str, Any]:
        return {each: given[each] for each in names if given[each] not in (None, ())}

    try:
        contract = Contract.model_validate(
            named("prompt", "max_new_tokens", "stop", "answer_pattern")
        )
        recipe = Recipe.model_validate(
            {
                **named("rank", "targets", "learning_rate", "epochs", "batch_size"),
                **({} if given["rank"] is None else {"alpha": given["rank"]}),
                "seed": given["seed"],
            }
        )
    except ValidationError as exc:
        raise click.UsageError(_first(exc)) from exc
    default = KitOptions()
    noise = default.noise if given["noise"] is None else given["noise"]
    if noise is not None and not 0 <= noise < float("inf"):
        raise click.UsageError(f"--noise is 0 or more, not {noise}")
    return KitOptions(
        contract=contract,
        recipe=recipe,
        n_seeds=given["n_seeds"],
        seed=given["seed"],
        noise=None if given["no_sketch"] else noise,
        base_name=given["base_name"],
        device=given["device"],
        is_weak_allowed=given["allow_weak"],
    )


def _seeds_of(path: Path) -> "list[Seed]":
    from deltahub.client.transfer import read_examples
    from deltahub.methods.transfer.kit import Seed

    return [Seed(input=each.input, completion=each.completion) for each in read_examples(path)]


def _ask(seeds: "Sequence[Seed]") -> "Sequence[Seed]":
    """Show the seeds until the user takes them, edited or not."""
    while True:
        click.echo("The kit stores these private examples as they are:", err=True)
        for number, seed in enumerate(seeds, 1):
            # All of it: nobody may let through what he has not seen.
            click.echo(f"{number}. {json.dumps(seed.input)}", err=True)
            if seed.completion is not None:
                click.echo(f"   -> {json.dumps(seed.completion)}", err=True)
        choice = click.prompt(
            "[a]ccept, [e]dit or [q]uit", type=click.Choice(["a", "e", "q"]), err=True
        )
        if choice == "q":
            raise click.Abort
        if choice == "a":
            return seeds
        seeds = _edited(seeds)


def _edited(seeds: "Sequence[Seed]") -> "Sequence[Seed]":
    lines = [json.dumps(each.model_dump(exclude_none=True), ensure_ascii=False) for each in seeds]
    text = click.edit("\n".join(lines) + "\n", extension=".jsonl")
    if text is None:
        return seeds
    from deltahub.methods.transfer.kit import Seed

    try:
        return [Seed.model_validate_json(each) for each in text.splitlines() if each.strip()]
    except ValidationError as exc:
        click.echo(f"nothing is changed: {_first(exc)}", err=True)
        return seeds


def _first(error: ValidationError) -> str:
    """What is wrong, without the value, which may be private."""
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, fault["loc"]))
    return f"{where}: {fault['msg']}" if where else str(fault["msg"])


def _name_in_hub(adapter: str, to: str | None) -> str:
    if to is not None:
        return to
    if Path(adapter).is_dir():
        raise click.UsageError(f"{adapter} is a folder: name the adapter in the hub by --to")
    return named_revision(adapter)[0]


def _told(name: str, found: KitFacts) -> list[str]:
    lines = [
        f"{name} has a kit for {found.name} on {found.base or 'a base that you may not read'}, from"
        f" {found.n_examples} private examples, of which it holds {found.n_seeds} as they are",
        f"the discriminator's AUC is {found.auc:.3f} (standard error {found.auc_error:.3f}), its"
        f" size {human_size(found.size)}",
    ]
    if found.source_accuracy is not None:
        tests = f"on {found.n_tests} private tests"
        lines.append(f"the adapter's accuracy is {found.source_accuracy:.1%} {tests}")
    if not found.is_current:
        lines.append("the adapter has changed since: make the kit again")
    return lines
