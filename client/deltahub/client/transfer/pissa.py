"""A base with the PiSSA factors of a kit, ready to train.

Meng et al., "PiSSA", arXiv 2404.02948. The base's weights become W - s B A, made from the factors
as they are stored: in BF16 the model then starts nearer to the base than if the factors were
rounded afterwards.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltahub.client.errors import InvalidArgument
from deltahub.client.hub import Hub
from deltahub.client.names import named_revision
from deltahub.client.progress import Progress
from deltahub.codecs.errors import how_to_install

if TYPE_CHECKING:
    import torch
    from peft import PeftModel

_ADAPTER: Final = "default"
_PREFIX: Final = "base_model.model."
_KIT_FOLDER: Final = "pissa_init"


def pissa_model(
    hub: Hub,
    base: str,
    *,
    kit: str | None = None,
    model: Any = None,
    load: "Callable[[Path], Any] | None" = None,
    task_type: str | None = "CAUSAL_LM",
    progress: Progress | None = None,
    **options: Any,
) -> "PeftModel":
    """The base as a model of PEFT whose adapter starts from a kit of the hub.

    base: `namespace/name[@revision]`. kit: `namespace/name[@revision]` of a kit; without it, one is
    made or found with `options`, which are the arguments of `Hub.pissa_init`, such as rank=16.
    model: the base as a model of transformers, if it is loaded already; its weights are changed.
    load: how to load it from a folder; by default AutoModelForCausalLM.from_pretrained in the dtype
    of the file. task_type: of PEFT.

    With a kit of QPiSSA the base's weights are the quantized residual, as values of their dtype.
    The training sees what a 4-bit model has, and takes the memory of one that is not quantized.

    What `save_pretrained` writes names the kit (`deltahub_kit` in adapter_config.json), so that the
    hub can convert it to a plain LoRA at any time. InvalidArgument if kit and model do not fit, or
    without peft and transformers; the errors of `Hub.pull` and `Hub.pissa_init`.
    """
    try:
        import peft  # noqa: F401
        import torch  # noqa: F401
        import transformers
    except ImportError as exc:
        raise InvalidArgument(f"pissa_model needs {exc.name}: {how_to_install('demo')}") from exc
    if kit is None:
        job = hub.pissa_init(base, **options).wait(progress=progress)
        made = job.result or {}
        kit = f"{made['name']}@{made['commit']}"
    elif options:
        raise InvalidArgument(
            f"a kit has its own {', '.join(options)}: give these or kit, not both"
        )
    name, revision = named_revision(kit)
    commit = hub.revision(name, revision or "main").commit
    folder = hub.pull(name, revision=commit, progress=progress) / _KIT_FOLDER
    if not (folder / "adapter_config.json").is_file():
        raise InvalidArgument(f"{kit} is no init kit: make one by `deltahub pissa init {base}`")
    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    told = json.loads((folder.parent / "kit.json").read_text("utf-8"))
    if told["base"] != named_revision(base)[0]:
        raise InvalidArgument(f"{kit} is a kit of {told['base']}, not of {base}: make one of that")
    if model is None:
        base_name, base_revision = named_revision(base)
        path = hub.pull(base_name, revision=base_revision or "main", progress=progress)
        read = load or (
            lambda at: transformers.AutoModelForCausalLM.from_pretrained(at, dtype="auto")
        )
        model = read(path)
    adapted = _adapted(model, config, f"{name}@{commit}", told["base"], task_type)
    scale, is_quantized = told["alpha"] / told["rank"], told.get("quant") == "nf4"
    _start(adapted, folder / "adapter_model.safetensors", scale, is_quantized=is_quantized)
    return adapted


def _adapted(
    model: Any, config: dict[str, Any], kit: str, base: str, task_type: str | None
) -> "PeftModel":
    """The model with empty adapters at the kit's modules."""
    from dataclasses import dataclass, field

    from peft import LoraConfig, get_peft_model

    # A class of its own, because PEFT saves the fields of the configuration's class.
    @dataclass
    class KitConfig(LoraConfig):
        deltahub_kit: str | None = field(default=None, metadata={"help": "The init kit."})

    wanted = {
        "r": config["r"],
        "lora_alpha": config["lora_alpha"],
        "target_modules": _present(model, config["target_modules"]),
        "fan_in_fan_out": config["fan_in_fan_out"],
    }
    settings = KitConfig(
        **wanted, lora_dropout=0.0, init_lora_weights=False, task_type=task_type, deltahub_kit=kit
    )
    adapted = get_peft_model(model, settings)
    # How the saved adapter has to be read: its base is changed.
    saved: Any = adapted.peft_config[_ADAPTER]
    saved.init_lora_weights = "pissa"
    saved.base_model_name_or_path = base
    # PEFT writes this name into the adapter's card.
    own: Any = adapted.get_base_model()
    own.config._name_or_path = base
    return adapted


def _present(model: Any, targets: list[str]) -> list[str]:
    """The targets as this model names them. A whole name may have one more part in front."""
    names = [name for name, _ in model.named_modules()]
    found = []
    for target in targets:
        if "." not in target:
            found.append(target)
            continue
        fits = [name for name in names if name == target or name.endswith(f".{target}")]
        if len(fits) != 1:
            raise InvalidArgument(
                f"the model has {len(fits)} modules {target} of the kit: give the base that the"
                " kit was made of"
            )
        found.append(fits[0])
    return found


def _start(adapted: "PeftModel", weights: Path, scale: float, *, is_quantized: bool) -> None:
    """Put the factors into the adapter, and take them from the base."""
    import torch
    from peft.tuners.lora import LoraLayer
    from safetensors import safe_open

    layers: dict[str, Any] = {
        name.removeprefix(_PREFIX): module
        for name, module in adapted.named_modules()
        if isinstance(module, LoraLayer)
    }
    with safe_open(weights, "pt") as kit, torch.no_grad():
        keys = set(kit.keys())
        ends = {key.removeprefix(_PREFIX).removesuffix(".lora_A.weight"): key
                for key in keys if key.endswith(".lora_A.weight")}  # fmt: skip
        left = dict(ends)
        for name, layer in layers.items():
            fits = [each for each in ends if _is_same(each, name)]
            if len(fits) != 1:
                raise InvalidArgument(f"the kit has no factors for the module {name} of the model")
            down = kit.get_tensor(left.pop(fits[0]))
            up = kit.get_tensor(f"{_PREFIX}{fits[0]}.lora_B.weight")
            _split(layer, name, (down, up), scale)
            if is_quantized:
                _quantize(layer)
    if left:
        raise InvalidArgument(
            f"the model lacks {len(left)} modules of the kit, such as {min(left)}: give the base"
            " that the kit was made of"
        )


def _is_same(one: str, other: str) -> bool:
    """Whether two names are of one module, which some classes of a model put below another one."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def _split(
    layer: Any, name: str, factors: "tuple[torch.Tensor, torch.Tensor]", scale: float
) -> None:
    """W becomes W - s B A, and the layer's adapter B A."""
    import torch

    down, up = factors
    own_down, own_up = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
    weight = layer.get_base_layer().weight
    if own_down.shape != down.shape or own_up.shape != up.shape:
        raise InvalidArgument(
            f"{name} of the model is {tuple(weight.shape)}, and its factors in the kit are"
            f" {tuple(up.shape)} and {tuple(down.shape)}: give the base that the kit was made of"
        )
    if not weight.is_floating_point():
        raise InvalidArgument(f"{name} of the model is quantized: load the base without that")
    own_down.data = down.to(weight.device)
    own_up.data = up.to(weight.device)
    product = scale * (up.to(weight.device, torch.float32) @ down.to(weight.device, torch.float32))
    if layer.fan_in_fan_out:
        product = product.T
    weight.data = (weight.data.to(torch.float32) - product).to(weight.dtype)


def _quantize(layer: Any) -> None:
    """The base's weight becomes what it is in NF4: the same values, in the dtype that it has."""
    import torch

    from deltahub.methods.quantization.nf4 import round_trip

    weight = layer.get_base_layer().weight
    # The kit was fitted to the weight as outputs x inputs, whose rows have blocks of their own.
    matrix = weight.data.T if layer.fan_in_fan_out else weight.data
    values = torch.from_numpy(round_trip(matrix.to("cpu", torch.float32).contiguous().numpy()))
    values = values.T if layer.fan_in_fan_out else values
    weight.data = values.to(weight.device, weight.dtype)
