"""How to use a model from programs: lines to copy, with this hub's address in them."""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from deltahub.codecs.exports.file import FILE_NAME
from deltahub.registry.access.repositories import DEFAULT_BRANCH
from deltahub.registry.cards.spent import Spent
from deltahub.registry.catalog.entries import entries_at
from deltahub.registry.catalog.lists.search import Listed
from deltahub.registry.reports.model.lists import ModelLine, describe_model
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hub import CallerDep, HubDep
from deltahub.server.public_url import origin_of
from deltahub.server.web.model.common import load_at
from deltahub.server.web.rendering import render

router = APIRouter(route_class=BoundedRoute)

# Task of a model -> the class of transformers that loads it.
_CLASSES: Final = {
    "text-generation": "AutoModelForCausalLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "fill-mask": "AutoModelForMaskedLM",
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "translation": "AutoModelForSeq2SeqLM",
    "summarization": "AutoModelForSeq2SeqLM",
    "image-classification": "AutoModelForImageClassification",
    "automatic-speech-recognition": "AutoModelForSpeechSeq2Seq",
    "image-text-to-text": "AutoModelForImageTextToText",
}


@router.get("/{namespace}/{name}/use")
def show_use(
    namespace: str, name: str, request: Request, hub: HubDep, viewer: CallerDep
) -> Response:
    """Show how clients get and load the model."""
    at = load_at(hub, viewer, namespace, name, DEFAULT_BRANCH)
    line: ModelLine | None = None
    is_export = False
    if at.row is not None:
        with hub.registry.db.read() as session:
            is_export = FILE_NAME in entries_at(session, at.row, [FILE_NAME])
        spent = Spent(hub.settings.page_bytes, hub.settings.page_entries)
        listed = Listed(at.repository, at.model.name, at.row)
        line = describe_model(hub.registry, hub.reader, viewer, listed, spent)
    task = "" if line is None else line.facts.pipeline or ""
    return render(
        request, hub, viewer, "model/use.html", model=at.model, line=line,
        # Middleware has put the public address in place of the one behind a proxy.
        url=origin_of(request), s3_url=hub.s3_door.url_for(origin_of(request)),
        loader=_CLASSES.get(task, "AutoModel"), is_export=is_export,
        is_adapter=at.model.adapter is not None
        or (line is not None and line.facts.adapter_base is not None),
    )  # fmt: skip
