"""The steps of the job `export_neuzip`."""

from math import prod
from typing import Any, Final

from deltahub.codecs.dtypes import DType
from deltahub.codecs.exports.coding import AnyCoding, Coding
from deltahub.codecs.exports.file import FILE_NAME, export_metadata
from deltahub.codecs.exports.integers import IntegerCoding
from deltahub.codecs.files.recipe import TensorRef
from deltahub.codecs.frames.encode import shape_to_rows
from deltahub.methods.exporting.entquant import Encoding
from deltahub.methods.exporting.loss import measure_trials
from deltahub.methods.exporting.report import (
    REPORT_FILE,
    ExportedWeight,
    ExportReport,
)
from deltahub.methods.kinds.weights.choice import TRIED_BITS, coding_with
from deltahub.registry.cards.card import CARD, MAX_CARD_BYTES
from deltahub.registry.cards.front_matter import BadCard, body, front_matter
from deltahub.registry.db.session import WriteSession
from deltahub.registry.errors import Conflict
from deltahub.registry.results import publish as results
from deltahub.registry.results.asked import granted_in
from deltahub.registry.results.files import FileMaker
from deltahub.registry.results.inputs import InputModel, read_input
from deltahub.registry.results.publish import Branch, Result
from deltahub.registry.results.tensors import MadePack
from deltahub.workers.compute.context import ComputeContext
from deltahub.workers.jobs.adapters.tensors import made_ref
from deltahub.workers.jobs.exporting.inputs import ExportInputs, load_inputs
from deltahub.workers.jobs.exporting.rates import encoding_of
from deltahub.workers.jobs.exporting.weights import code_weight, is_finite, slices_of

# Weights in other forms, which would be the whole model once more.
_OTHER_WEIGHTS: Final = (
    ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf",
    ".onnx", ".h5", ".msgpack",
)  # fmt: skip


def measure(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: what one of the weights that the budget is for loses at each number of bits.

    {"next", "measured": [{"name", "count", "trials": [bits, bytes, error] of each}]}
    """
    inputs = load_inputs(context)
    first: int = arguments["first"]
    name = inputs.choice.open[first]
    tensor = inputs.model.tensors[name]
    dtype = DType[tensor.ref.dtype]
    hows = [coding_with(dtype, bits, inputs.arguments) for bits in TRIED_BITS]
    measured = []
    if is_finite(context, tensor, hows[0]):
        found = measure_trials(hows, slices_of(context, tensor, hows[0]), context.threads)
        trials = [(each.bits, each.size_bytes, each.error) for each in found]
        measured = [{"name": name, "count": prod(tensor.ref.shape), "trials": trials}]
    context.report("measure", first + 1, len(inputs.choice.open))
    is_last = first + 1 == len(inputs.choice.open)
    return {"next": None if is_last else first + 1, "measured": measured}


def code(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: the parts of one pack, from the weight number `first` on. arguments: first; bits: name
    -> bits that the budget chose; rounding: as rates.py chooses it, or {}.

    {"next", "made": the tensors, "weights": ExportedWeight of each}
    """
    inputs = load_inputs(context)
    names, position = list(inputs.choice.coded), arguments["first"]
    whole = sum(inputs.model.tensors[name].ref.size for name in names)
    before = sum(inputs.model.tensors[name].ref.size for name in names[:position])
    made: list[dict[str, object]] = []
    weights: list[dict[str, Any]] = []
    domain, limit = inputs.grant.domain_id, context.registry.settings.pack_bytes
    with MadePack(context.registry, context.reader, domain, context.job_id) as pack:
        while position < len(names) and pack.size_bytes < limit:
            tensor = inputs.model.tensors[names[position]]
            how = _encoding(inputs, names[position], arguments)
            start = before

            def progress(done: int, start: int = start) -> None:
                context.report("code the weights", start + done, whole)

            parts, told = code_weight(context, pack, tensor, how, progress)
            made += parts
            weights.append(told.model_dump(mode="json"))
            before += tensor.ref.size
            position += 1
        pack.store(0)
    next_one = position if position < len(names) else None
    return {"next": next_one, "made": made, "weights": weights}


def make_file(context: ComputeContext, arguments: dict[str, Any]) -> int:
    """Step: the row of the export's file of weights. arguments: made, weights."""
    inputs = load_inputs(context)
    maker = FileMaker(context.registry, context.reader, inputs.grant.domain_id, context.job_id)
    plain = [inputs.model.tensors[name].ref for name in inputs.choice.plain]
    tensors: list[TensorRef] = [*plain, *(made_ref(each) for each in arguments["made"])]
    told = [ExportedWeight.model_validate(each) for each in arguments["weights"]]
    codings = {each.name: (each.shape, _coding_of(each)) for each in told}

    def progress(done: int, total: int) -> None:
        context.report("hash the export", done, total)

    return maker.new_file(tensors, export_metadata(codings), progress)


def publish(context: ComputeContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Step: makes the repository. arguments: made, weights, row, and perplexity
    if there is one. {"name", "commit", "export"}"""
    inputs = load_inputs(context)
    given, grant, model = inputs.arguments, inputs.grant, inputs.model
    plain_bytes = sum(model.tensors[name].ref.size for name in inputs.choice.plain)
    weights = tuple(ExportedWeight.model_validate(each) for each in arguments["weights"])
    report = ExportReport(
        model=f"{model.name}@{model.commit}",
        method=given.method,
        bits="all" if given.lossless else given.bits,
        budget=given.budget,
        block=given.block,
        weights=weights,
        plain=inputs.choice.plain,
        plain_bytes=sum(each.ref.size for each in model.tensors.values()),
        export_bytes=plain_bytes + sum(each.coded_bytes for each in weights),
        perplexity=arguments.get("perplexity"),
    )
    fields, text = _card_of(context, model)
    texts = {
        CARD: report.card(given.name, model.name, fields, text, MAX_CARD_BYTES).encode(),
        REPORT_FILE: (report.model_dump_json(indent=1) + "\n").encode(),
    }
    files = {
        file.path: file.row
        for file in model.files
        if file.path not in texts and not file.path.endswith(_OTHER_WEIGHTS)
    }
    base = (report.model, model.revision_id)
    message = f"Export {model.name} with compressed weights"
    branch = Branch("main", message, {**files, FILE_NAME: arguments["row"]}, texts, [])
    result = Result(given.name, grant.is_private, "export", base, [branch])

    def still_granted(session: WriteSession) -> None:
        if granted_in(session, context.registry.settings, context.job_id) != grant:
            raise Conflict("what the job may read or make has changed while it ran: retry it")

    commit = results.publish(context.registry, grant.caller, context.job_id, result, still_granted)
    return {"name": given.name, "commit": commit, "export": report.model_dump(mode="json")}


def _card_of(context: ComputeContext, model: InputModel) -> tuple[dict[str, Any], str]:
    """(fields, text) of the model's card; of one that is no card, only the text."""
    sizes = {file.path: file.size for file in model.files}
    if sizes.get(CARD, MAX_CARD_BYTES + 1) > MAX_CARD_BYTES:
        return {}, ""
    data = read_input(context.registry, context.reader, model, CARD)
    try:
        return front_matter(data), body(data)
    except BadCard:
        return {}, body(data)


def _encoding(inputs: ExportInputs, name: str, arguments: dict[str, Any]) -> Encoding:
    bits: dict[str, int] = arguments["bits"]
    if name not in bits:
        return encoding_of(inputs, name, arguments["rounding"])
    dtype = DType[inputs.model.tensors[name].ref.dtype]
    return coding_with(dtype, bits[name], inputs.arguments)


def _coding_of(told: ExportedWeight) -> AnyCoding:
    dtype = DType[told.dtype]
    if told.method == "entquant":
        return IntegerCoding(dtype, shape_to_rows(told.shape)[1])
    assert told.bits is not None, "only whole numbers have none"
    return Coding(dtype, told.bits, told.levels, told.block)
