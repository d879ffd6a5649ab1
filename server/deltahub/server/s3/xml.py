"""Documents of S3: XML in its namespace, which some clients ask for and others ignore."""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Final, TypeAlias
from xml.etree import ElementTree

from starlette.responses import Response

_SPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
# What XML 1.0 cannot hold, however it is escaped.
_ILLEGAL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Content: TypeAlias = "str | Iterable[tuple[str, Content]]"


def document(root: str, content: Content, *, status: int = 200) -> Response:
    """Return an answer. content: text, or elements by name in their order."""
    element = _element(root, content)
    if root != "Error":
        element.set("xmlns", _SPACE)
    body = ElementTree.tostring(element, encoding="UTF-8", xml_declaration=True)
    return Response(body, status, media_type="application/xml")


def date_text(date: datetime) -> str:
    return f"{date:%Y-%m-%dT%H:%M:%S}.000Z"


def _element(name: str, content: Content) -> ElementTree.Element:
    element = ElementTree.Element(name)
    if isinstance(content, str):
        element.text = _ILLEGAL.sub("\ufffd", content)
    else:
        element.extend(_element(*each) for each in content)
    return element
