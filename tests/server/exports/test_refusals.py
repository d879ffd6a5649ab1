"""What cannot be exported is refused, with the reason and the way out, and nothing is made."""

from typing import Any

import pytest
import torch

from deltahub.client import InvalidRequest, NotFound
from support.adapters.tuning import trained_adapter, write_base
from support.exporting.place import Place
from support.service.client_process import deltahub


def ask(place: Place, token: str | None = None, **arguments: Any) -> Any:
    place.model("bf16")
    body = {
        "kind": "export_neuzip",
        "arguments": {"model": "ann/bf16", "name": "ann/x"} | arguments,
    }
    return place.hub.call("POST", "/v1/jobs", token=token or place.token, body=body)


BAD = {
    "a block that is no power of two": ({"bits": 3, "block": 100}, 422, "power of two"),
    "a block of lossless weights": ({"lossless": True, "block": 64}, 422, "leave block out"),
    "a budget without auto": ({"budget": 5}, 422, "belong together"),
    "auto without a budget": ({"bits": "auto"}, 422, "belong together"),
    "lossless with bits": ({"lossless": True, "bits": 3}, 422, "leave bits out"),
    "also that is not fewer": ({"bits": 3, "also": [1, 3]}, 422, "also 3: not fewer than the 3"),
    "also beyond auto": ({"bits": "auto", "budget": 5, "also": [7]}, 422, "7 mantissa bits that"),
    "also that no weight has": ({"lossless": True, "also": [7]}, 422, "has more than 7 mantissa"),
    "a block where nothing is rounded": ({"block": 512}, 422, "give fewer bits, or leave block"),
    "a budget below the signs": ({"bits": "auto", "budget": 0.9}, 422, "fewer than 1; --dry-run"),
    "a short text": ({"text": "the fox"}, 422, "7 letters are too few"),
    "a pattern of no tensor": ({"keep": ["*.q_porj.weight"]}, 422, "has no tensor *.q_porj"),
    "bits that nobody has": ({"bits": 2}, 422, "bits"),
    "no such model": ({"model": "ann/gone"}, 404, "ann/gone"),
    "a taken name": ({"name": "ann/bf16"}, 409, "ann/bf16"),
    "another's namespace": ({"name": "admin/x"}, 403, ""),
    "an unknown option": ({"rank": 4}, 422, "rank"),
}


@pytest.mark.parametrize("fault", BAD)
def test_what_cannot_be_is_refused_at_once(place: Place, fault: str) -> None:
    arguments, status, message = BAD[fault]
    answer = ask(place, **arguments)
    assert answer.status == status, answer.body
    assert message in answer.message


def test_only_those_who_may_read_a_model_export_it(place: Place) -> None:
    mallory = place.hub.user("mallory")
    place.model("secret")
    place.ann.set_private("ann/secret", True)
    given = {"model": "ann/secret", "name": "mallory/x"}
    assert ask(place, mallory, **given).status == 404
    reader = place.hub.user("reader", scope="read")
    assert ask(place, reader, name="reader/x").status == 403


def exports(place: Place) -> list[str]:
    return [job.id for job in place.ann.jobs(kind="export_neuzip")]


def refused(place: Place, model: str, match: str, **options: Any) -> None:
    before = exports(place)
    with pytest.raises(InvalidRequest, match=match):
        place.ann.export_neuzip(f"ann/{model}", "ann/never", **options)
    assert exports(place) == before
    with pytest.raises(NotFound):
        place.ann.repository("ann/never")


def test_an_adapter_is_to_be_merged_first(place: Place) -> None:
    base = write_base(place.folder("letters"))
    place.ann.push(base, "ann/letters")
    trained_adapter(base, place.folder("adapter"))
    place.ann.push(place.folder("adapter"), "ann/adapter", base="ann/letters")
    refused(place, "adapter", "deltahub adapter merge")


def test_an_export_is_not_exported_again(place: Place) -> None:
    place.model("bf16")
    place.export("bf16", "first")
    refused(place, "first", "name the model that it was made from")


def test_a_model_without_matrices_of_floats_is_told(place: Place) -> None:
    place.push("integers", {"table": torch.arange(8192).view(64, 128)})
    refused(place, "integers", "has no matrix of floats")


def test_a_model_without_safetensors_is_told(place: Place) -> None:
    folder = place.folder("notes")
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("nothing")
    place.ann.push(folder, "ann/notes")
    refused(place, "notes", "has no safetensors file")


def test_a_folder_in_place_of_a_model_is_a_wrong_argument(place: Place) -> None:
    for folder in ("./base", "../models/base", "/models/base", "~/base"):
        told = deltahub(
            "export", "neuzip", folder, "--name", "ann/x", environment=place.environment
        )
        assert told.status == 2
        assert "push the folder first" in told.err
