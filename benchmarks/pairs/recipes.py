"""benchmarks/pairs.toml as data: bases, what is trained from them, and the pairs to measure."""

import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

RECIPES = Path(__file__).resolve().parents[1] / "pairs.toml"
DTYPES = ("F32", "F16", "BF16")

Method = Literal["full", "bf16", "lora", "frozen", "extended", "snapshot", "unrelated"]
TRAINED: frozenset[str] = frozenset({"full", "bf16", "lora", "frozen", "extended"})


class BadRecipe(Exception):
    """pairs.toml asks for something that there is not."""


@dataclass(frozen=True)
class LlamaBase:
    """A Llama that is trained from scratch: architecture, text and schedule."""

    name: str
    kind: Literal["llama"]
    corpus: str
    text_bytes: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    steps: int
    batch: int  # examples in one step
    sequence: int  # tokens in one example
    learning_rate: float
    seed: int
    snapshot_step: int | None = None


@dataclass(frozen=True)
class PackageBase:
    """An encoder that an installed package carries as a safetensors file."""

    name: str
    kind: Literal["package"]
    package: str
    module: str
    file: str
    sha256: str


Base = LlamaBase | PackageBase


@dataclass(frozen=True)
class Run:
    """One training: from the base as it was saved in `start`, then saved in each of `saves`."""

    start: str
    saves: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """A base and a fine-tune, each in every dtype."""

    name: str
    base: str
    method: Method
    runs: tuple[Run, ...]
    base_values: str | None = None  # the base's files hold values of this dtype, whatever theirs
    corpus: str | None = None
    learning_rate: float = 0.0
    weight_decay: float = 0.0
    steps: int = 0
    batch: int = 0
    sequence: int = 0
    seed: int = 0
    rank: int | None = None
    adapter: str | None = None  # the dtype of a LoRA when it is merged
    new_tokens: int = 0
    other: str | None = None  # the base that stands as an unrelated fine-tune

    @property
    def is_trained(self) -> bool:
        return self.method in TRAINED


@dataclass(frozen=True)
class Recipes:
    bases: dict[str, Base]
    pairs: dict[str, Pair]

    def base_digest(self, name: str) -> str:
        return _digest({"base": asdict(self.bases[name])})

    def run_digest(self, pair: Pair, run: Run) -> str:
        """What a run's weights depend on; not on the pair's name, nor on how they are saved."""
        lines = asdict(pair)
        for key in ("name", "runs", "adapter", "base_values"):
            del lines[key]
        return _digest({"base": self.base_digest(pair.base), "start": run.start, **lines})

    def files_digest(self, pair: Pair) -> str:
        return _digest({"base": self.base_digest(pair.base), **asdict(pair)})


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def load_recipes(path: Path = RECIPES) -> Recipes:
    """BadRecipe for a name or a dtype that the file does not define."""
    with path.open("rb") as file:
        text = tomllib.load(file)
    bases: dict[str, Base] = {}
    for name, lines in text["bases"].items():
        maker = LlamaBase if lines["kind"] == "llama" else PackageBase
        bases[name] = maker(name=name, **lines)
    pairs: dict[str, Pair] = {}
    for lines in text["pairs"]:
        pair = _pair(text, lines)
        if pair.name in pairs or pair.base not in bases:
            raise BadRecipe(f"pair {pair.name}: twice, or of the unknown base {pair.base}")
        pairs[pair.name] = pair
    return Recipes(bases, pairs)


def _pair(text: dict[str, Any], lines: dict[str, Any]) -> Pair:
    is_trained = lines["method"] in TRAINED
    merged = {**(text["defaults"].get(lines["base"], {}) if is_trained else {}), **lines}
    starts = dict(text["starts"][merged.pop("starts")])
    runs = tuple(Run(run["start"], tuple(run["saves"])) for run in starts.pop("runs"))
    pair = Pair(**merged, **starts, runs=runs)
    saved = [dtype for run in runs for dtype in run.saves]
    if is_trained and sorted(saved) != sorted(DTYPES):
        raise BadRecipe(f"pair {pair.name} is saved as {saved}, not once in each of {DTYPES}")
    return pair
