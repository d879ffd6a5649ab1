"""An init kit: what the repository of a kit says about it, and its files."""

import json
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from deltahub.methods.adapters.lora import CONFIG_FILE, WEIGHTS_FILE
from deltahub.methods.kinds.bases.pissa_init import PissaInitArguments
from deltahub.methods.kinds.kind import Shapes
from deltahub.methods.kinds.weights.targets import matrices_of
from deltahub.methods.sizes import human_size

# The folder of the factors, as PEFT's conversion calls it.
FOLDER: Final = "pissa_init/"
KIT_FILE: Final = "kit.json"
KIT_CONFIG: Final = FOLDER + CONFIG_FILE
KIT_WEIGHTS: Final = FOLDER + WEIGHTS_FILE

# Part of the key, to be increased when the same arguments give other factors.
_METHOD_VERSION: Final = 1


class KitModule(BaseModel):
    """One adapted matrix. shape: outputs x inputs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    module: str
    shape: tuple[int, int]
    energy: float = Field(description="Share of the squared weight that the factors hold.")
    largest: float = Field(description="The largest singular value.")
    smallest: float = Field(description="The smallest singular value of those in the factors.")
    plain_error: float | None = Field(
        default=None, description="QPiSSA: nuclear norm of what NF4 alone loses."
    )
    fitted_error: float | None = Field(
        default=None, description="QPiSSA: nuclear norm of what NF4 and the factors lose."
    )


class Kit(BaseModel):
    """kit.json. key: of the weights and arguments that the factors were made from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    key: str
    base: str
    base_commit: str
    rank: int
    alpha: float
    dtype: str
    targets: tuple[str, ...]
    fan_in_fan_out: bool
    niter: int | None
    seed: int
    quant: str | None
    iters: int | None
    modules: tuple[KitModule, ...]

    @property
    def scale(self) -> float:
        """s, which B A is multiplied by."""
        return self.alpha / self.rank

    def sentences(self) -> list[str]:
        """What a person wants to know of it."""
        energies = sorted(module.energy for module in self.modules)
        middle = energies[len(energies) // 2]
        lines = [
            f"{len(self.modules)} matrices of rank {self.rank}: the factors hold"
            f" {energies[0]:.1%} to {energies[-1]:.1%} of the squared weights, {middle:.1%} in the"
            " middle"
        ]
        for name, reduction in self.reductions().items():
            lines.append(f"{name}: NF4 loses {reduction:.1%} less (nuclear norm) than without them")
        return lines

    def reductions(self) -> dict[str, float]:
        """Kind of module -> the paper's reduction ratio, the mean of its layers; {} if not
        quantized.
        """
        found: dict[str, list[float]] = {}
        for each in self.modules:
            if each.plain_error is not None and each.fitted_error is not None:
                ratio = 1 - each.fitted_error / each.plain_error if each.plain_error else 0.0
                found.setdefault(each.module.rpartition(".")[2], []).append(ratio)
        return {name: sum(ratios) / len(ratios) for name, ratios in found.items()}

    def card(self, name: str) -> str:
        """The model card."""
        kind = "QPiSSA (NF4)" if self.quant else "PiSSA"
        lines = "\n".join(f"- {line}" for line in self.sentences())
        return (
            f"---\nbase_model: {self.base}\nbase_model_relation: adapter\nlibrary_name: peft\n"
            f"tags:\n- pissa\n- init-kit\n---\n# {name}\n\nThe {kind} factors of rank {self.rank}"
            f" that adapters of `{self.base}@{self.base_commit[:12]}` start from. It is no trained"
            " adapter.\n\n```python\nfrom deltahub.client import Hub\nfrom"
            " deltahub.client.transfer import pissa_model\n\nmodel = pissa_model(Hub(),"
            f' "{self.base}", kit="{name}")\n```\n\n{lines}\n'
        )


class KitEstimate(BaseModel):
    """What a kit will cost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_modules: int
    kit_bytes: int = Field(description="The kit's weights.")
    read_bytes: int = Field(description="Bytes of weights that the job reads.")
    memory_bytes: int = Field(description="Memory that the job takes at most.")
    known: str | None = Field(default=None, description="A kit that is there already.")

    def sentences(self) -> list[str]:
        """What a person should know before it starts."""
        if self.known is not None:
            return [f"the hub has this kit already: {self.known}"]
        return [
            f"the factors of {self.n_modules} matrices take {human_size(self.kit_bytes)}; the job"
            f" reads {human_size(self.read_bytes)} in at most {human_size(self.memory_bytes)} of"
            " memory"
        ]


def key_of(arguments: PissaInitArguments, weights: Mapping[str, bytes], *, transposed: bool) -> str:
    """The same for the same factors. weights: module -> content id of its weight."""
    parts = arguments.model_dump(
        mode="json", exclude={"base", "name", "private", "dry_run", "targets"}
    )
    parts["alpha"] = arguments.scale * arguments.rank
    parts["weights"] = {module: content.hex() for module, content in weights.items()}
    parts["method"], parts["transposed"] = _METHOD_VERSION, transposed
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def kit_config(kit: Kit, modules: Collection[str], base: Shapes) -> bytes:
    """adapter_config.json of the factors, as PEFT reads it."""
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": kit.base,
        "revision": kit.base_commit,
        "r": kit.rank,
        "lora_alpha": int(kit.alpha) if kit.alpha == int(kit.alpha) else kit.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": target_names(modules, matrices_of(base)),
        "fan_in_fan_out": kit.fan_in_fan_out,
        "init_lora_weights": "pissa",
        "use_rslora": False,
        "inference_mode": True,
    }
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()


def target_names(modules: Collection[str], known: Sequence[str]) -> list[str]:
    """The last parts of the modules' names if these name no other module, else whole names."""
    last = {module.rpartition(".")[2] for module in modules}
    named = [each for each in known if each.rpartition(".")[2] in last]
    return sorted(last) if set(named) == set(modules) else sorted(modules)


def default_names(given: PissaInitArguments, key: str, spaces: Sequence[str]) -> list[str]:
    """Names of a kit that nobody named, the best first. spaces: the namespaces it may be in."""
    short = given.base.partition("@")[0].partition("/")[2]
    method = "qpissa" if given.quant else "pissa"
    name = f"{short[:70]}-{method}-r{given.rank}"
    return [f"{space}/{each}" for space in spaces for each in (name, f"{name}-{key[:8]}")]
