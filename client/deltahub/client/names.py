"""What the name of a namespace or repository may look like: the hub's own rule, told at once."""

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
    is_formed = len(name) <= MAX_BRANCH and _BRANCH.fullmatch(name) is not None
    return is_formed and not is_reserved and _COMMIT.fullmatch(name) is None


def branch_name(name: str) -> str:
    """The name itself. InvalidArgument when no branch can have it."""
    if not is_branch(name):
        raise InvalidArgument(
            f"{name!r} is not the name of a branch: letters, digits and ._-+/, beginning with a "
            "letter or digit, without .. or //, and no commit"
        )
    return name


def repository_path(name: str) -> str:
    """The URL path of `namespace/name`. InvalidArgument when it is not of that form."""
    if not is_repository_name(name):
        raise InvalidArgument(
            f"{name!r} is not the name of a repository: use NAMESPACE/NAME, each of letters, "
            "digits, dots, dashes and underscores"
        )
    return f"/v1/repositories/{name}"


def namespace_name(name: str) -> str:
    """The name itself. InvalidArgument when no namespace can have it."""
    if not is_name(name):
        raise InvalidArgument(
            f"{name!r} is not the name of a namespace: letters, digits, dots, dashes and "
            "underscores, beginning with a letter or digit"
        )
    return name
