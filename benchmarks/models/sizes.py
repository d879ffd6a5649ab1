"""The two model families that the demonstration and the benchmarks train."""

from dataclasses import dataclass

from benchmarks.models.text import Corpus


@dataclass(frozen=True)
class FineTune:
    """One fine-tune of the base. `rank` None trains every weight, else a LoRA that is merged."""

    name: str
    corpus: Corpus
    learning_rate: float
    steps: int
    rank: int | None = None
    seed: int = 1


@dataclass(frozen=True)
class Family:
    """A Llama architecture, how its base is trained, and its fine-tunes."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    sequence: int  # tokens in one training example
    batch: int  # examples in one step
    base_steps: int
    base_learning_rate: float
    text_bytes: int
    dtypes: tuple[str, ...]  # safetensors names; what is saved
    # True: fine-tunes start from the base as it was saved in dtypes[0], as anybody's fine-tune of a
    # published BF16 checkpoint does. False: from the F32 weights.
    starts_from_saved: bool
    fine_tunes: tuple[FineTune, ...]
    seed: int = 0


# Some 4 million parameters; about two minutes of training on two cores.
DEMO = Family(
    name="demo",
    hidden=256,
    layers=4,
    heads=4,
    kv_heads=2,
    intermediate=704,
    vocabulary=2048,
    sequence=128,
    batch=8,
    base_steps=150,
    base_learning_rate=2e-3,
    text_bytes=3_000_000,
    dtypes=("BF16",),
    starts_from_saved=True,
    fine_tunes=(
        FineTune("full-1e-5", "documentation", 1e-5, steps=60),
        FineTune("full-1e-4", "headers", 1e-4, steps=60),
        FineTune("lora-r8", "tables", 5e-4, steps=60, rank=8),
    ),
)

# 22 million parameters, untied embeddings as large models have; a quarter of an hour on one core.
BENCH = Family(
    name="bench",
    hidden=448,
    layers=6,
    heads=7,
    kv_heads=7,
    intermediate=1216,
    vocabulary=8192,
    sequence=256,
    batch=4,
    base_steps=300,
    base_learning_rate=1.5e-3,
    text_bytes=12_000_000,
    dtypes=("F32", "F16", "BF16"),
    starts_from_saved=False,
    fine_tunes=(
        FineTune("full-1e-5", "documentation", 1e-5, steps=90),
        FineTune("full-1e-4", "headers", 1e-4, steps=90),
        FineTune("lora-r16", "tables", 2e-4, steps=90, rank=16),
    ),
)

FAMILIES = {family.name: family for family in (DEMO, BENCH)}
