"""Where a request for a renamed repository is answered."""

from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response

from deltahub.registry.errors import RepositoryMoved


def renamed(request: Request, error: Exception) -> Response | None:
    """Return the redirect of a request to the new name of its repository; None for no redirect.

    A deletion is not redirected, because whoever deletes a name means what has the name. Neither
    is a request that names the repository in its body: only the sentence has the new name.
    """
    if not isinstance(error, RepositoryMoved) or request.method == "DELETE":
        return None
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    parts = raw.partition(b"?")[0].split(b"/")
    old = error.name.encode().split(b"/")
    new = error.new_name.encode().split(b"/")
    plain = [unquote_to_bytes(part) for part in parts]
    for at in range(len(parts) - 1):
        git = b".git" if plain[at + 1].endswith(b".git") else b""
        if [plain[at], plain[at + 1].removesuffix(b".git")] == old:
            path = b"/".join([*parts[:at], new[0], new[1] + git, *parts[at + 2 :]])
            query: bytes = request.scope["query_string"]
            where = path + (b"?" + query if query else b"")
            return Response(status_code=307, headers={"Location": where.decode("latin-1")})
    return None
