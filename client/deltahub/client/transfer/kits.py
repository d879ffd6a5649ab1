"""Makes the kit of an adapter where its private data are. They do not leave this machine.

Wang et al., "Trans-LoRA: towards data-free Transferable Parameter Efficient Finetuning", NeurIPS
2024, arXiv 2405.17258: seeds, made-up inputs of the source base, and the discriminator, which
learns to tell them from the private ones. The sketch and the split are ours.
"""

import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltahub.client.errors import InvalidArgument
from deltahub.client.hub import Hub
from deltahub.client.local.adapters import lint_folder
from deltahub.client.local.kits import LocalKit, require_free, write_kit
from deltahub.client.names import named_revision
from deltahub.client.progress import Progress, Silent
from deltahub.client.transfer.examples import (
    Example,
    different,
    read_examples,
    require_completions,
)
from deltahub.client.transfer.sources import Source, find_source
from deltahub.codecs.errors import how_to_install
from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.transfer.contract import Contract
from deltahub.methods.transfer.discriminator_file import pack_discriminator
from deltahub.methods.transfer.kit import N_SEEDS, Seed, TransferKit, tokenizer_digest
from deltahub.methods.transfer.measures.distances import DEFAULT_NOISE
from deltahub.methods.transfer.recipe import Recipe
from deltahub.methods.transfer.rejection import Rejection, sample

if TYPE_CHECKING:
    from deltahub.methods.transfer.measures.discrimination import DiscriminatorReport
    from deltahub.methods.transfer.measures.distances import Sketch

Redact = Callable[[Sequence[Seed]], Sequence[Seed]]
"""The seeds that were picked -> those that may be stored, edited or others."""

# Draws for each made-up input that is wanted; a small base repeats itself.
_TIMES: Final = 20
_LISTS: Final = 8


@dataclass(frozen=True)
class KitOptions:
    """How a kit is made.

    contract: of the task. recipe: of the discriminator. noise: of the sketch, as a standard
    deviation; None leaves the sketch out. base_name: `namespace/name[@revision]` of a base in a
    folder. is_weak_allowed: also with a discriminator that guesses. seed: of every choice but the
    sketch's noise, which nobody may repeat.
    """

    contract: Contract = field(default_factory=Contract)
    recipe: Recipe = field(default_factory=Recipe)
    n_seeds: int = N_SEEDS
    seed: int = 0
    noise: float | None = DEFAULT_NOISE
    base_name: str | None = None
    device: str = "cpu"
    is_weak_allowed: bool = False


@dataclass(frozen=True)
class MadeKit:
    """A kit in its folder, and what a person should know of it. n_made_up: inputs of the base that
    the discriminator learnt from. peak_bytes: of this process's memory.
    """

    folder: Path
    kit: TransferKit
    n_made_up: int
    peak_bytes: int

    def sentences(self) -> list[str]:
        return [*self.kit.sentences(), f"{self.n_made_up} inputs were made up by the base"]


def make_kit(
    adapter: str | Path,
    base: str | Path,
    dataset: str | Path | Iterable[Example],
    *,
    name: str,
    output: str | Path,
    redact: Redact | None = None,
    seeds: Sequence[Seed] | None = None,
    tests: str | Path | Iterable[Example] | None = None,
    options: KitOptions | None = None,
    hub: Hub | None = None,
    progress: Progress | None = None,
) -> MadeKit:
    """Make the kit of an adapter in the folder `output`; `Hub.push_kit` stores it in a hub.

    adapter, base: a folder, or `namespace/name[@revision]` of a hub, which is pulled. dataset: the
    private examples, or a file of JSON lines with `input` and, if known, `completion`. name: of the
    dataset, which the discriminator is asked about. redact: shows the seeds to the owner and gives
    those that may be stored; needed unless `seeds` are given. tests: examples with completions that
    the adapter was not trained on, to measure its accuracy, which a move then promises to keep.
    hub: by default that of the environment; it is asked for the base's commit, and gets nothing.

    The same seed gives the same kit on the same machine, except for the noise of the sketch.
    InvalidArgument for examples that are none; CannotTransfer if the discriminator guesses, or if
    base, adapter and examples do not fit together.
    """
    options, reporter = options or KitOptions(), progress or Silent()
    require_free(Path(output))
    options = replace(options, device=_device(options.device))
    real = different(_examples(dataset))
    tested = None if tests is None else different(_examples(tests))
    if tested is not None:
        require_completions(tested, "tests")
        known = {each.input for each in tested}
        real = [each for each in real if each.input not in known]
    kept = _seeds(real, options, redact, seeds)
    source = find_source(adapter, base, options.base_name, hub)
    _refuse_changed_base(source.adapter)
    work = _Work(source, options, name, reporter)
    with work.peak():
        invented = work.invent(kept, [each.input for each in real])
        report = work.train([each.input for each in real], invented)
        sketch = work.sketch([each.input for each in real], invented)
        accuracy = None if tested is None else work.accuracy(tested)
        discriminator = work.discriminator()
    kit = TransferKit(
        name=name,
        adapter=source.adapter_title,
        base=source.base_title,
        contract=options.contract,
        seeds=tuple(kept),
        n_examples=len(real),
        source_accuracy=accuracy,
        n_tests=0 if tested is None else len(tested),
        discriminator=report,
        sketch=sketch,
        adapter_sha256=sha256((source.adapter / WEIGHTS_FILE).read_bytes()).hexdigest(),
        discriminator_sha256=sha256(discriminator).hexdigest(),
        tokenizer_sha256=tokenizer_digest(
            {each.name: each.read_bytes() for each in source.base.iterdir() if _is_small(each)}
        ),
    )
    write_kit(Path(output), LocalKit(kit, discriminator))
    return MadeKit(Path(output), kit, len(invented), work.peak_bytes)


def _examples(given: str | Path | Iterable[Example]) -> Iterable[Example]:
    return read_examples(given) if isinstance(given, str | Path) else given


def _seeds(
    real: Sequence[Example],
    options: KitOptions,
    redact: Redact | None,
    given: Sequence[Seed] | None,
) -> list[Seed]:
    """The seeds that the owner lets be stored."""
    if redact is None and given is None:
        raise InvalidArgument(
            "nobody has looked at the private examples that would be stored as seeds: give `redact`"
            " or `seeds`"
        )
    if given is None:
        if len(real) < options.n_seeds:
            raise InvalidArgument(
                f"{len(real)} different examples are too few to pick {options.n_seeds} seeds from"
            )
        picked = random.Random(f"{options.seed}/seeds").sample(real, options.n_seeds)
        given = [Seed(input=each.input, completion=each.completion) for each in picked]
    kept = list(given if redact is None else redact(given))
    if not kept:
        raise InvalidArgument("no seed is left: a base needs one at least to make up others")
    if len({each.input for each in kept}) < len(kept):
        raise InvalidArgument("two seeds are the same: give different ones")
    return kept


def _refuse_changed_base(adapter: Path) -> None:
    report = lint_folder(adapter)
    if report.state != "plain":
        raise InvalidArgument(
            f"the adapter is {report.state}, and a kit needs one that acts on its base as it is:"
            f" {'; '.join(report.sentences()[:3])}"
        )


def _device(name: str) -> str:
    """Where the models run. InvalidArgument for what is no device, or not one of this machine."""
    from deltahub.methods.errors import CannotMerge
    from deltahub.methods.evaluation.exact_match import device_of

    if not re.fullmatch(r"auto|cpu|cuda:\d{1,3}", name):
        raise InvalidArgument(f"device is auto, cpu or cuda:N, not {name!r}")
    try:
        return name if name == "cpu" else device_of(name)
    except CannotMerge as exc:
        raise InvalidArgument(str(exc)) from exc
    except ImportError as exc:
        raise _lacks(exc) from exc


def _lacks(error: ImportError) -> InvalidArgument:
    return InvalidArgument(f"making a kit needs {error.name}: {how_to_install('demo')}")


def _is_small(path: Path) -> bool:
    return path.is_file() and path.suffix != ".safetensors" and path.suffix != ".bin"


class _Work:
    """The models, with which the steps of a kit are done one after another."""

    def __init__(self, source: Source, options: KitOptions, name: str, progress: Progress) -> None:
        self._source = source
        self._options = options
        self._name = name
        self._progress = progress
        self.peak_bytes = 0

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        """(model with the adapter, tokenizer)."""
        try:
            from deltahub.methods.transfer.models.adapters import TEACHER, load_adapter, load_base
        except ImportError as exc:
            raise _lacks(exc) from exc
        with self._progress.stage("loading base and adapter", None, is_bytes=False):
            model, tokenizer = load_base(self._source.base, self._options.device)
            return load_adapter(model, self._source.adapter, TEACHER), tokenizer

    @contextmanager
    def peak(self) -> Iterator[None]:
        """Afterwards peak_bytes says how much memory this process had at most."""
        import resource

        yield
        self.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def invent(self, seeds: Sequence[Seed], real: Sequence[str]) -> list[str]:
        """As many inputs as there are private ones, none of which is one of them or a seed."""
        from deltahub.methods.transfer.models.adapters import using
        from deltahub.methods.transfer.models.generating import Sampling
        from deltahub.methods.transfer.models.inventing import invent

        model, tokenizer = self._loaded
        shown = [each.input for each in seeds]
        state = Rejection.start([*dict.fromkeys([*shown, *real])], len(real), _TIMES)
        sampling = Sampling(seed=self._options.seed)
        with (
            self._progress.stage("making up inputs with the base", None, is_bytes=False) as stage,
            using(model, None),
        ):

            def draw(call: int) -> list[str]:
                stage.set_position(len(state.accepted), state.wanted)
                return invent(model, tokenizer, shown, call, n_lists=_LISTS, sampling=sampling)

            sample(state, draw, None)
        if len(state.accepted) < len(real):
            self._progress.note(
                f"the base made up {len(state.accepted)} new inputs in {state.drawn} draws, fewer"
                f" than the {len(real)} private ones: more or other seeds may help"
            )
        return state.accepted

    def train(self, real: Sequence[str], invented: Sequence[str]) -> "DiscriminatorReport":
        from deltahub.methods.transfer.models.discriminator import train_discriminator

        model, tokenizer = self._loaded
        with self._progress.stage("training the discriminator", None, is_bytes=False) as stage:
            _, report = train_discriminator(
                model,
                tokenizer,
                real,
                invented,
                self._name,
                self._options.recipe,
                stage.set_position,
                is_weak_allowed=self._options.is_weak_allowed,
            )
        return report

    def sketch(self, real: Sequence[str], invented: Sequence[str]) -> "Sketch | None":
        """Of the private inputs. Its kernel's width comes from the made-up ones."""
        from deltahub.methods.transfer.measures.distances import (
            median_gamma,
            rounded_gamma,
            sketch_of,
        )
        from deltahub.methods.transfer.models.embeddings import embed

        if self._options.noise is None:
            return None
        model, tokenizer = self._loaded
        with self._progress.stage("sketching the private inputs", None, is_bytes=False) as stage:
            found = embed(model, tokenizer, invented, stage.set_position)
            gamma = rounded_gamma(median_gamma(found))
            values = embed(model, tokenizer, real, stage.set_position)
        return sketch_of(values, gamma, seed=self._options.seed, noise=self._options.noise)

    def accuracy(self, tests: Sequence[Example]) -> float:
        """The share of tests that the adapter answers as the examples say."""
        from deltahub.methods.transfer.measures.agreement import agreement
        from deltahub.methods.transfer.models.students import label

        model, tokenizer = self._loaded
        contract = self._options.contract
        with self._progress.stage("testing the adapter", None, is_bytes=False) as stage:
            found = label(
                model,
                tokenizer,
                [each.input for each in tests],
                contract,
                on_progress=stage.set_position,
            )
        wanted = [each.completion or "" for each in tests]
        return agreement(wanted, [each.completion for each in found], contract).value

    def discriminator(self) -> bytes:
        from deltahub.methods.transfer.models.adapters import DISCRIMINATOR, save_adapter

        base, commit = named_revision(self._source.base_title)
        with tempfile.TemporaryDirectory() as folder:
            save_adapter(self._loaded[0], DISCRIMINATOR, Path(folder), base, commit)
            config, weights = (Path(folder) / each for each in (CONFIG_FILE, WEIGHTS_FILE))
            return pack_discriminator(config.read_bytes(), weights.read_bytes())
