"""The token in the Authorization header of a request."""

import base64

from deltahub.registry.errors import Unauthorized


def token_in(header: str) -> str:
    """Return the token of an Authorization header. Raises Unauthorized without one.

    Git LFS, and Hugging Face clients before 0.20, send it as the password of any user; where there
    is no password, the user's name is the token.
    """
    scheme, _, sent = header.partition(" ")
    token = sent.strip()
    if scheme.lower() == "basic":
        try:
            user, _, password = base64.b64decode(token, validate=True).decode().partition(":")
        except ValueError:  # of base64 and of UTF-8
            user = password = ""
        token = password or user
    elif scheme.lower() != "bearer":
        token = ""
    if not token:
        raise Unauthorized(
            "the Authorization header must be: Bearer <token>, or Basic with the token as password"
        )
    return token
