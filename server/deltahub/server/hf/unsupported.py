"""Parts of the Hugging Face API that this hub lacks. Each answers what to do instead."""

from typing import Final

from fastapi import APIRouter

from deltahub.registry.errors import RepositoryNotFound
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hf.errors import NotSupported

router = APIRouter(route_class=BoundedRoute)

_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
_MODEL: Final = "/api/models/{namespace}/{name}"
_NO_DATASETS: Final = "this hub keeps models, and no datasets"
_NO_SPACES: Final = "this hub keeps models, and no spaces"
# Reading a dataset or a space answers 404: after 501, clients report a broken connection.
_NONE_HERE: Final[dict[str, tuple[str, ...]]] = {
    _NO_DATASETS: ("/api/datasets/{rest:path}", "/datasets/{rest:path}"),
    _NO_SPACES: ("/api/spaces/{rest:path}", "/spaces/{rest:path}"),
}
_SENTENCES: Final[dict[str, tuple[str, ...]]] = {
    _NO_DATASETS: (
        "/api/datasets", "/api/datasets/{rest:path}", "/datasets/{rest:path}",
        "/api/datasets-tags-by-type",
    ),
    _NO_SPACES: ("/api/spaces", "/api/spaces/{rest:path}", "/spaces/{rest:path}"),
    "this hub keeps models, and no kernels": ("/api/kernels", "/api/kernels/{rest:path}"),
    "this hub keeps models, and no buckets": ("/api/buckets", "/api/buckets/{rest:path}"),
    "this hub has no discussions and no pull requests: commit to a branch": (
        f"{_MODEL}/discussions", f"{_MODEL}/discussions/{{rest:path}}",
    ),
    "this hub has no gated models: make the model private, with members": (
        f"{_MODEL}/user-access-request/{{rest:path}}", f"{_MODEL}/user-access-report",
    ),
    "this hub has no likes": (
        f"{_MODEL}/like", f"{_MODEL}/likers", "/api/users/{user}/likes",
    ),
    "this hub has no profiles of users and organizations: list_models(author=...) lists their"
    " models": (
        "/api/users/{user}/{what}", "/api/organizations/{organization}/overview",
        "/api/organizations/{organization}/members", "/api/organizations/{organization}/followers",
    ),
    "this hub keeps no list of tags: list_models(filter=...) finds the models that have one": (
        "/api/models-tags-by-type",
    ),
    "this hub does not duplicate whole models: download it and upload it under its new name; what"
    " the two share is stored once": (f"{_MODEL}/duplicate",),
    "this hub has no collections": ("/api/collections", "/api/collections/{rest:path}"),
    "this hub has no webhooks": ("/api/settings/webhooks", "/api/settings/webhooks/{rest:path}"),
    "this hub runs no jobs for clients": (
        "/api/jobs/{rest:path}", "/api/scheduled-jobs/{rest:path}",
    ),
    "this hub has no papers": ("/api/papers/{rest:path}", "/api/daily_papers"),
    "log in with a token: `hf auth login --token ...`; the hub's operator makes one with"
    " `deltahub user token create`": ("/oauth/device", "/oauth/token"),
}  # fmt: skip


def _refuse_with(sentence: str, path: str) -> None:
    @router.api_route(path, methods=_METHODS)
    def refuse() -> None:
        raise NotSupported(sentence)


def _find_none_with(sentence: str, path: str) -> None:
    @router.api_route(path, methods=["GET", "HEAD"])
    def find_none() -> None:
        raise RepositoryNotFound(sentence)


for _sentence, _paths in _NONE_HERE.items():
    for _path in _paths:
        _find_none_with(_sentence, _path)
for _sentence, _paths in _SENTENCES.items():
    for _path in _paths:
        _refuse_with(_sentence, _path)
