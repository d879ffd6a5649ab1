"""The application behind the door: every route that Hugging Face clients use."""

from fastapi import FastAPI

from deltahub.server.hf import errors, resolve, unsupported
from deltahub.server.hf.reading import models, trees
from deltahub.server.hf.writing import commits, large_files, lfs, repositories
from deltahub.server.hf.xet import downloads, links, uploads
from deltahub.server.hub import Hub

# The first that matches is taken.
_MODULES = (
    resolve,
    models,
    trees,
    repositories,
    commits,
    large_files,
    lfs,
    links,
    downloads,
    uploads,
    unsupported,
)


def create_hugging_face_app(hub: Hub) -> FastAPI:
    """The routes on a running hub. Not in our OpenAPI: what it is, those clients have fixed."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.hub = hub
    errors.install(app)
    # As the modules have them: the application keeps them out of sight.
    app.state.routes = [route for module in _MODULES for route in module.router.routes]
    for module in _MODULES:
        app.include_router(module.router)
    return app
