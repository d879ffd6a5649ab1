"""The models that a hub of any size is filled with copies of, and how many of each."""

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

# Full names of the bases that others declare.
COMMON_BASE: Final = "bench/common-base"
RARE_BASE: Final = "bench/rare-base"
# Of copies with this number: a base, a tag and a part of the name that no other copy has.
RARE: Final = frozenset({3, 33, 333, 633, 933})
RARE_WORD: Final = "quokka"


@dataclass(frozen=True)
class Model:
    """A model that is pushed. share: copies of every 20. base: what its push declares."""

    name: str
    files: dict[str, bytes]
    share: int = 0
    base: str | None = None


def models() -> list[Model]:
    """Every model, bases before the models that declare them."""
    base, rare = _weights(1), _weights(2)
    config = json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}).encode()
    whole = {"config.json": config, "model.safetensors": base}
    return [
        Model(COMMON_BASE, whole | {"README.md": _card(license="apache-2.0", language="en")}, 3),
        Model(RARE_BASE, {"config.json": config, "model.safetensors": rare}),
        Model(
            "bench/tune",
            {"config.json": config, "model.safetensors": _weights(1, moved=0.01)}
            | {"README.md": _card(base_model=COMMON_BASE, tags=["chat"], license="apache-2.0")},
            8,
            COMMON_BASE,
        ),
        Model(
            "bench/adapter",
            {"adapter_config.json": json.dumps({"base_model_name_or_path": COMMON_BASE}).encode()}
            | {"adapter_model.safetensors": _weights(3), "README.md": _card(tags=["lora"])},
            4,
            COMMON_BASE,
        ),
        Model(
            "bench/quantized",
            {"model.Q4.gguf": bytes(4096), "README.md": _card(base_model=COMMON_BASE)},
            2,
            COMMON_BASE,
        ),
        Model("bench/plain", {"README.md": _card(pipeline_tag="fill-mask", language="de")}, 3),
        Model(
            "bench/rare-tune",
            {"config.json": config, "model.safetensors": _weights(2, moved=0.01)}
            | {"README.md": _card(base_model=RARE_BASE, tags=["once-in-a-while"])},
            0,
            RARE_BASE,
        ),
    ]


def _card(**fields: Any) -> bytes:
    # JSON is YAML.
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(["---", *lines, "---", "# A model", ""]).encode()


def _weights(seed: int, moved: float = 0.0) -> bytes:
    """A safetensors file of four matrices. moved: how much they differ from those of the seed."""
    matrices = np.random.default_rng(seed).normal(size=(4, 64, 64))
    matrices += moved * np.random.default_rng(seed + 100).normal(size=matrices.shape)
    data = matrices.astype(np.float32)
    size = data[0].nbytes
    header = {
        f"layer.{i}.weight": {
            "dtype": "F32", "shape": [64, 64], "data_offsets": [i * size, (i + 1) * size],
        }
        for i in range(len(data))
    }  # fmt: skip
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data.tobytes()
