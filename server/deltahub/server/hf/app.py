"""The application with every route that Hugging Face clients use."""

from fastapi import FastAPI

from deltahub.server.hf import errors, resolve, unsupported
from deltahub.server.hf.reading import lists, models, people, safetensors_headers, trees
from deltahub.server.hf.writing import commits, duplicating, large_files, lfs, repositories
from deltahub.server.hf.xet import downloads, links, uploads
from deltahub.server.hub import Hub

# In order: the first route that matches answers.
_MODULES = (
    lists,
    models,
    safetensors_headers,
    trees,
    people,
    repositories,
    commits,
    duplicating,
    large_files,
    lfs,
    links,
    downloads,
    uploads,
    resolve,  # after /api/models: a namespace may be called raw
    unsupported,
)


def create_hugging_face_app(hub: Hub) -> FastAPI:
    """Build the application for a hub. It has no OpenAPI document: the clients define this API."""
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # Slashes at the end are taken away before: see TidyPaths.
        redirect_slashes=False,
    )
    app.state.hub = hub
    errors.install(app)
    # errors.py looks up the methods of a path here.
    app.state.routes = [route for module in _MODULES for route in module.router.routes]
    for module in _MODULES:
        app.include_router(module.router)
    return app
