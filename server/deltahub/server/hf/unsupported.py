"""Parts of the Hugging Face API that this hub lacks. Each answers what to do instead."""

from typing import Final

from fastapi import APIRouter
from starlette.responses import JSONResponse, PlainTextResponse, Response

from deltahub.registry.errors import RepositoryNotFound
from deltahub.registry.names import is_name
from deltahub.server.body_limits import BoundedRoute
from deltahub.server.hf.errors import NotSupported, refusal

router = APIRouter(route_class=BoundedRoute)

_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
_MODEL: Final = "/api/models/{namespace}/{name}"
_NO_DATASETS: Final = "this hub keeps models, and no datasets: push the files to a model"
_NO_SPACES: Final = (
    "this hub keeps models, and no spaces: run the program elsewhere and load its models from here"
)
# Reading a dataset or a space answers 404: after 501, clients report a broken connection.
_NONE_HERE: Final[dict[str, tuple[str, ...]]] = {
    _NO_DATASETS: ("/api/datasets/{rest:path}", "/datasets", "/datasets/{rest:path}"),
    _NO_SPACES: ("/api/spaces/{rest:path}", "/spaces", "/spaces/{rest:path}"),
}
_SENTENCES: Final[dict[str, tuple[str, ...]]] = {
    _NO_DATASETS: (
        "/api/datasets", "/api/datasets/{rest:path}", "/datasets/{rest:path}",
        "/api/datasets-tags-by-type",
    ),
    _NO_SPACES: ("/api/spaces", "/api/spaces/{rest:path}", "/spaces/{rest:path}"),
    "this hub keeps models, and no kernels": ("/api/kernels", "/api/kernels/{rest:path}"),
    "this hub keeps models, and no buckets: push the files to a model": (
        "/api/buckets", "/api/buckets/{rest:path}", "/buckets/{rest:path}",
    ),
    "this hub has no discussions and no pull requests: commit to a branch": (
        f"{_MODEL}/discussions", f"{_MODEL}/discussions/{{rest:path}}",
    ),
    "this hub has no gated models: make the model private, with members": (
        f"{_MODEL}/user-access-request/{{rest:path}}", f"{_MODEL}/user-access-report",
        "/{namespace}/{name}/ask-access",
    ),
    "this hub has no likes: list_models(sort='downloads') shows what is used most": (
        f"{_MODEL}/like", f"{_MODEL}/likers", "/api/users/{user}/likes",
    ),
    "nobody follows anybody on this hub: list_models(author=...) lists the models of a user or an"
    " organization": (
        "/api/users/{user}/{what}", "/api/organizations/{organization}/followers",
    ),
    "this hub keeps no list of tags: list_models(filter=...) finds the models that have one": (
        "/api/models-tags-by-type",
    ),
    "this hub has no collections": ("/api/collections", "/api/collections/{rest:path}"),
    "this hub has no webhooks": ("/api/settings/webhooks", "/api/settings/webhooks/{rest:path}"),
    "this hub runs no jobs for clients": (
        "/api/jobs/{rest:path}", "/api/scheduled-jobs/{rest:path}",
    ),
    "this hub has no papers": ("/api/papers/{rest:path}", "/api/daily_papers"),
    "log in with a token: `hf auth login --token ...`; the hub's operator makes one with"
    " `deltahub user token create`": ("/oauth/device", "/oauth/token"),
}  # fmt: skip


# What git asks for, below the name of a repository.
_GIT_SERVICES: Final = ("info/refs", "git-upload-pack", "git-receive-pack")
_NO_GIT: Final = (
    "this hub does not speak git. To download a model: `hf download {name}`, or `deltahub pull"
    " {name}`; to upload a folder: `hf upload {name} FOLDER`, or `deltahub push FOLDER {name}`.\n"
)
_NO_OCI: Final = (
    "this hub is no registry of containers, so that ollama and docker cannot pull from it: `hf"
    " download NAMESPACE/NAME FILE.gguf`, then `ollama create` with FROM ./FILE.gguf"
)


def _refuse_git(path: str) -> None:
    @router.api_route(path, methods=["GET", "POST"])
    def refuse_git(namespace: str, name: str) -> Response:
        short = name.removesuffix(".git")
        # A terminal shows this text, so it has no other characters than those of names.
        meant = (
            f"{namespace}/{short}" if is_name(namespace) and is_name(short) else "NAMESPACE/NAME"
        )
        sentence = _NO_GIT.format(name=meant)
        # git shows the text of an error that is plain text.
        return PlainTextResponse(sentence, 501, {"X-Error-Code": "NotImplemented"})


for _service in _GIT_SERVICES:
    for _kind in ("", "/datasets", "/spaces"):
        _refuse_git(f"{_kind}/{{namespace}}/{{name}}/{_service}")


@router.api_route("/v2", methods=_METHODS)
@router.api_route("/v2/{rest:path}", methods=_METHODS)
def refuse_oci() -> Response:
    """Answer clients of container registries in the form that they show."""
    refused = refusal("not_supported", _NO_OCI, status=501)
    error = {"code": "UNSUPPORTED", "message": _NO_OCI}
    headers = {key: refused.headers[key] for key in ("X-Error-Code", "X-Error-Message")}
    return JSONResponse({"errors": [error]}, 501, headers)


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
