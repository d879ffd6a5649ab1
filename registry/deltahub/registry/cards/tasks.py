"""The task of a model whose card names none, from its configuration, as huggingface.co shows it."""

from collections.abc import Mapping
from typing import Any, Final

# How the name of an architecture ends -> the task; the first that fits decides.
_TASKS: Final = (
    ("ForCausalLM", "text-generation"),
    ("LMHeadModel", "text-generation"),
    ("ForMaskedLM", "fill-mask"),
    ("ForSequenceClassification", "text-classification"),
    ("ForTokenClassification", "token-classification"),
    ("ForQuestionAnswering", "question-answering"),
    ("ForMultipleChoice", "multiple-choice"),
    ("ForImageClassification", "image-classification"),
    ("ForObjectDetection", "object-detection"),
    ("ForSemanticSegmentation", "image-segmentation"),
    ("ForImageSegmentation", "image-segmentation"),
    ("ForDepthEstimation", "depth-estimation"),
    ("ForAudioClassification", "audio-classification"),
    ("ForSpeechSeq2Seq", "automatic-speech-recognition"),
    ("ForCTC", "automatic-speech-recognition"),
    ("Model", "feature-extraction"),
)
# Architectures of this ending have several tasks; the type of the model tells which.
_CONDITIONAL: Final = "ForConditionalGeneration"
_TEXT_TO_TEXT: Final = frozenset(
    {"bart", "longt5", "marian", "mbart", "mt5", "pegasus", "t5", "umt5"}
)
_SPEECH: Final = frozenset({"speech_to_text", "whisper"})


def task_of(config: Mapping[str, Any]) -> str | None:
    """Return the task of the first architecture in a config.json; None if it does not tell."""
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(first, str):
        return None
    if first.endswith(_CONDITIONAL):
        kind = config.get("model_type")
        if kind in _TEXT_TO_TEXT:
            return "text2text-generation"
        if kind in _SPEECH:
            return "automatic-speech-recognition"
        return "image-text-to-text" if "vision_config" in config else None
    return next((task for ending, task in _TASKS if first.endswith(ending)), None)
