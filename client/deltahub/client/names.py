"""Names that repositories, branches and files may have: the hub's rules, checked early."""

import re

from deltahub.client.errors import InvalidArgument

MAX_NAME = 96
MAX_BRANCH = 250
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BRANCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_name(name: str) -> bool:
    """Whether a namespace or a repository within one may have this name."""
    is_reserved = name.endswith((".git", ".lock")) or ".." in name
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None and not is_reserved


def is_repository_name(name: str) -> bool:
    """Whether this is `namespace/name`."""
    namespace, slash, short = name.partition("/")
    return bool(slash) and is_name(namespace) and is_name(short)


def is_branch(name: str) -> bool:
    """Whether a branch may have this name."""
    is_reserved = ".." in name or "//" in name or name.endswith(("/", ".", ".lock"))
    is_reserved = is_reserved or name == "HEAD" or name.startswith("refs/")
    is_formed = len(name) <= MAX_BRANCH and _BRANCH.fullmatch(name) is not None
    if not is_formed or is_reserved or _COMMIT.fullmatch(name) is not None:
        return False
    return path_problem(name) is None  # clients keep a file of this name


def is_commit(text: str) -> bool:
    """Whether this is a whole commit id."""
    return _COMMIT.fullmatch(text) is not None


def branch_name(name: str) -> str:
    """The name itself. InvalidArgument when no branch can have it."""
    if not is_branch(name):
        raise InvalidArgument(
            f"{name!r} is not the name of a branch: letters, digits and ._-+/, beginning with a "
            "letter or digit, without .. or //, no commit, not HEAD, not beginning with refs/, and "
            "a valid path of a file"
        )
    return name


def file_path(path: str) -> str:
    """The path itself. InvalidArgument when no file of a repository can have it."""
    problem = path_problem(path)
    if problem is not None:
        raise InvalidArgument(
            f"{path!r} cannot be the path of a file in a repository: it {problem}"
        )
    return path


def path_problem(path: str) -> str | None:
    """Why no file of a repository can have this path, as the end of a sentence, or None."""
    # Imported here, because the package of codecs takes as long to import as the whole client.
    from deltahub.codecs.files import paths

    return paths.path_problem(path)


def repository_path(name: str) -> str:
    """The URL path of `namespace/name`. InvalidArgument when it is not of that form."""
    if not is_repository_name(name):
        raise InvalidArgument(
            f"{name!r} is not the name of a repository: use NAMESPACE/NAME, each of letters, "
            "digits, dots, dashes and underscores"
        )
    return f"/v1/repositories/{name}"


def named_revision(text: str) -> tuple[str, str | None]:
    """(name, revision or None) of `name[@revision]`; InvalidArgument for `name@`."""
    name, at, revision = text.partition("@")
    if at and not revision:
        raise InvalidArgument(
            f"{text} names no revision: write one after the @, or leave the @ out"
        )
    return name, revision or None


def namespace_name(name: str) -> str:
    """The name itself. InvalidArgument when no namespace can have it."""
    if not is_name(name):
        raise InvalidArgument(
            f"{name!r} is not the name of a namespace: letters, digits, dots, dashes and "
            "underscores, beginning with a letter or digit"
        )
    return name
