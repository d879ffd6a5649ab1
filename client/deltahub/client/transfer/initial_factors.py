"""Keeps the factors that an adapter starts from beside everything that its training saves.

Kinds of initialization that change the base (pissa, olora, lora_ga, corda) make an adapter that
only acts right on the changed base. With its initial factors the hub converts it to a plain LoRA;
most of them cannot be computed again later.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from deltahub.client.errors import InvalidArgument
from deltahub.codecs.errors import how_to_install

_WEIGHTS: Final = "adapter_model.safetensors"
_FACTORS: Final = (".lora_A.weight", ".lora_B.weight")


@contextmanager
def keep_initial_factors(model: Any, adapter: str = "default") -> Iterator[Any]:
    """Within this context, `model.save_pretrained` also saves the factors as they are now.

    model: a PEFT model, made and not trained yet. The factors go into the folder `KIND_init`, such
    as `pissa_init`, of each folder that is saved to, where the hub looks for them. A Trainer saves
    by the same method. InvalidArgument if the adapter is no LoRA.
    """
    undo = _keep(model, adapter)
    try:
        yield model
    finally:
        undo()


def initial_factors_callback(adapter: str = "default") -> Any:
    """A TrainerCallback that does the same from the beginning of `Trainer.train` on."""
    try:
        from transformers import TrainerCallback
    except ImportError as exc:
        raise InvalidArgument(f"this needs {exc.name}: {how_to_install('demo')}") from exc

    # Inherits from a class of an optional package.
    class InitialFactors(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            model = given["model"]
            if state.global_step == 0:
                _keep(model, adapter)
            elif not hasattr(model, _MARK):
                raise InvalidArgument(
                    "this training goes on from a checkpoint, whose factors are not the initial"
                    " ones: copy the folder of initial factors from its first part"
                )

    return InitialFactors()


# An attribute of a model whose initial factors are kept.
_MARK: Final = "_deltahub_keeps_initial_factors"


def _keep(model: Any, adapter: str) -> Callable[[], None]:
    """Save the factors with everything that the model saves from now on; a call ends that."""
    try:
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file
    except ImportError as exc:
        raise InvalidArgument(
            f"keeping factors needs {exc.name}: {how_to_install('demo')}"
        ) from exc
    config = getattr(model, "peft_config", {}).get(adapter)
    if config is None or not hasattr(config, "init_lora_weights"):
        raise InvalidArgument(f"the model has no LoRA named {adapter}: make it by get_peft_model")
    saved = get_peft_model_state_dict(model, adapter_name=adapter, save_embedding_layers=False)
    factors = {
        name: tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in saved.items()
        if name.endswith(_FACTORS)
    }
    kind = str(config.init_lora_weights).lower().partition("_niter")[0]
    save_pretrained = model.save_pretrained

    def save_both(save_directory: str, *args: Any, **options: Any) -> Any:
        result = save_pretrained(save_directory, *args, **options)
        if options.get("is_main_process", True):
            folder = Path(save_directory) / f"{kind}_init"
            folder.mkdir(parents=True, exist_ok=True)
            save_file(factors, folder / _WEIGHTS, {"format": "pt"})
        return result

    model.save_pretrained = save_both
    setattr(model, _MARK, True)

    def undo() -> None:
        model.save_pretrained = save_pretrained
        delattr(model, _MARK)

    return undo
