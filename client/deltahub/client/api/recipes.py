"""A file's recipe and how the hub stores its tensors, checked against each other."""

from dataclasses import dataclass

from deltahub.client.api.endpoints import Api
from deltahub.client.errors import BadResponse, VerificationFailed
from deltahub.client.records import Entry, PlannedTensor
from deltahub.codecs.errors import CodecError
from deltahub.codecs.files.recipe import Recipe
from deltahub.codecs.ids import tensor_id


@dataclass(frozen=True)
class StoredRecipe:
    """A recipe and its tensors as the hub stores them, by id. n_bytes: of the recipe itself.

    link_origin: as in RecipePlan.
    """

    recipe: Recipe
    stored: dict[bytes, PlannedTensor]
    n_bytes: int
    link_origin: str | None = None


def read_recipe(api: Api, name: str, commit: str, entry: Entry) -> StoredRecipe:
    """The recipe of an entry. NotReady before its ingest is over.

    BadResponse or VerificationFailed if it is damaged or of another file.
    """
    plan = api.get_recipe_plan(name, commit, entry.path)
    data = api.get_recipe_bytes(name, commit, entry.path)
    if tensor_id(data).hex() != plan.recipe:
        raise VerificationFailed(f"{entry.path}: the recipe does not have its own hash")
    try:
        recipe = Recipe.from_bytes(data)
    except CodecError as exc:
        raise BadResponse(f"{entry.path}: the hub sent no recipe: {exc}") from exc
    sizes = {plan.size, recipe.size, entry.size}
    if len({plan.sha256, recipe.sha256.hex(), entry.sha256}) > 1 or len(sizes) > 1:
        raise VerificationFailed(f"{entry.path}: the hub sent another file's recipe")
    stored = {bytes.fromhex(tensor.id): tensor for tensor in plan.tensors}
    for ref in recipe.tensors():
        known = stored.get(ref.tensor)
        if known is not None and known.size != ref.size:
            raise BadResponse(
                f"{entry.path}: the hub says that a tensor has {known.size} bytes, and its recipe"
                f" says {ref.size}"
            )
    return StoredRecipe(recipe, stored, len(data), plan.link_origin)
