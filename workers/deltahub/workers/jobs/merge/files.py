"""The files of the branches: those of a model, with merged tensors in its weights."""

from typing import Any

from deltahub.registry.results.files import FileMaker
from deltahub.registry.results.inputs import InputFile, InputModel
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.merge.models import MAIN, OTHER_WEIGHTS, MergeModels, load_models

CARD = "README.md"
REPORT = "merge_report.json"
ERRORS = "merge_errors.json"


def model_of(models: MergeModels, ref: str) -> InputModel:
    """The model whose files a branch has."""
    return models.base if ref == MAIN else models.tasks[ref]


def branch_files(model: InputModel) -> list[InputFile]:
    """The model's files that a branch keeps: not its card, and no weights that are not merged."""
    return [
        file
        for file in model.files
        if file.path not in (CARD, REPORT, ERRORS) and not file.path.endswith(OTHER_WEIGHTS)
    ]


def make_file(context: ComputeContext, arguments: dict[str, Any]) -> int:
    """Step: the row of a branch's safetensors file; reads it back to hash it.

    arguments: ref, path, tensors: name -> content id in hex of the tensors that are other than the
    model's own.
    """
    models = load_models(context, arguments)
    ref, path = arguments["ref"], arguments["path"]
    (file,) = [each for each in model_of(models, ref).files if each.path == path]
    assert file.recipe is not None, "only safetensors files are made"
    contents = {name: bytes.fromhex(each) for name, each in arguments["tensors"].items()}
    domain = models.granted.domain_id
    maker = FileMaker(context.registry, context.reader, domain, context.job_id)

    def progress(done: int, total: int) -> None:
        context.report(f"hash {path} of {ref}", done, total)

    return maker.replace_tensors(file.recipe, contents, progress)
