"""What the steps of an export work with: the model, and how each of its weights is coded."""

from dataclasses import dataclass
from typing import Final

from deltahub.codecs.exports.file import FILE_NAME
from deltahub.methods.kinds.export_neuzip import ExportNeuzipArguments
from deltahub.methods.kinds.weights.choice import Choice, check_shapes, refuse_other_models
from deltahub.registry.results.asked import Granted, granted
from deltahub.registry.results.inputs import ADAPTER_CONFIG, InputModel, load_model
from deltahub.workers.compute.context import ComputeContext

CONFIG: Final = "config.json"


@dataclass(frozen=True)
class ExportInputs:
    """grant: what the user may read and make, checked at each step."""

    grant: Granted
    arguments: ExportNeuzipArguments
    model: InputModel
    choice: Choice


def load_inputs(context: ComputeContext) -> ExportInputs:
    """The model, if the job's user may still read it, and how its weights are coded."""
    grant = granted(context.registry, context.job_id)
    known = context.memo.get("export")
    if isinstance(known, ExportInputs) and known.grant == grant:
        return known
    arguments = ExportNeuzipArguments.model_validate(grant.arguments)
    (row,) = grant.revisions
    model = load_model(context.registry, context.reader, row, context.job_id)
    paths = {file.path for file in model.files}
    is_adapter, is_export = ADAPTER_CONFIG in paths, FILE_NAME in paths
    refuse_other_models(model.title, is_adapter=is_adapter, is_export=is_export)
    shapes = {name: (each.ref.dtype, each.ref.shape) for name, each in model.tensors.items()}
    choice = check_shapes(shapes, arguments, model.title)
    inputs = ExportInputs(grant, arguments, model, choice)
    context.memo["export"] = inputs
    return inputs
