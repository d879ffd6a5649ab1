"""The step that measures the perplexity of a model and of its export."""

import shutil
from typing import Any

from deltahub.codecs.exports.file import FILE_NAME
from deltahub.methods.inference.perplexity import (
    TOKENIZERS,
    check_measurable,
    measure_perplexity,
    tokens_of,
)
from deltahub.registry.db.models import File
from deltahub.registry.results.inputs import InputModel, read_input
from deltahub.registry.uploads.limits import require_room
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.exporting.inputs import CONFIG, load_inputs
from deltahub.workers.jobs.model_folder import small_files, weight_files, write_file


def score(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: Perplexity. arguments: row: of the export's file of weights."""
    inputs = load_inputs(context)
    model, text = inputs.model, inputs.arguments.text
    assert text is not None, "the step runs where a text was given"
    root = context.folder() / "perplexity"
    shutil.rmtree(root, ignore_errors=True)  # of an attempt that was interrupted
    with context.registry.db.read() as session:
        n_export = session.get_one(File, arguments["row"]).size
    small = small_files(model)
    weights = weight_files(model)
    require_room(context.registry, n_export + sum(file.size for file in (*small, *weights)))
    plain, export = root / "plain", root / "export"
    for file in small:
        for folder in (plain, export):
            write_file(context, file.row, folder / file.path)
    for file in weights:
        write_file(context, file.row, plain / file.path)
    write_file(context, arguments["row"], export / FILE_NAME)
    found = measure_perplexity(plain, export, text, context.threads)
    shutil.rmtree(root, ignore_errors=True)
    return found.model_dump(mode="json")


def check_text(context: ComputeContext, model: InputModel, text: str) -> None:
    """CannotExport for a model whose perplexity of the text cannot be measured."""
    paths = {file.path for file in model.files}
    config = None
    if CONFIG in paths:
        config = read_input(context.registry, context.reader, model, CONFIG)
    check_measurable(config, not paths.isdisjoint(TOKENIZERS), model.title)
    root = context.folder() / "tokenizer"
    shutil.rmtree(root, ignore_errors=True)  # of an attempt that was interrupted
    small = small_files(model)
    require_room(context.registry, sum(file.size for file in small))
    for file in small:
        write_file(context, file.row, root / file.path)
    tokens_of(root, text)
    shutil.rmtree(root, ignore_errors=True)
