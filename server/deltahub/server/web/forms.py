"""What every form of a page is checked for before its route runs."""

from typing import Annotated, Any, Final

from fastapi import Depends, Request
from starlette.datastructures import FormData

from deltahub.registry.errors import InvalidRequest
from deltahub.registry.names import quoted
from deltahub.server.browser_sessions import (
    CSRF_FIELD,
    CSRF_HEADER,
    SAFE_METHODS,
    check_csrf,
    check_origin,
)
from deltahub.server.hub import CallerDep, HubDep

# Of numbers that a database takes.
_DIGITS: Final = 19


async def checked(request: Request, hub: HubDep, caller: CallerDep) -> None:
    """Raise Forbidden if a request that changes something does not come from a page of this hub."""
    if request.method in SAFE_METHODS:
        return
    check_origin(request)
    token = request.headers.get(CSRF_HEADER)
    if token is None:
        form = await request.form()
        token = _text(form, CSRF_FIELD)
    check_csrf(hub.signer, caller, token)


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form, without files. A field that comes twice has its last value."""
    form = await request.form()
    return {name: value.strip() for name, value in form.items() if isinstance(value, str)}


def number_in(form: dict[str, str], name: str) -> int:
    """Return the number in a field of a form. Raises InvalidRequest."""
    text = form.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < _DIGITS):
        raise InvalidRequest(f"{quoted(text)} is no number: load the page again")
    return int(text)


FormDep = Annotated[dict[str, str], Depends(form_of)]


async def whole_form_of(request: Request) -> FormData:
    """Return a form whose fields may come several times."""
    return await request.form()


WholeFormDep = Annotated[FormData, Depends(whole_form_of)]


def _text(form: FormData, name: str) -> str | None:
    value: Any = form.get(name)
    return value if isinstance(value, str) else None
