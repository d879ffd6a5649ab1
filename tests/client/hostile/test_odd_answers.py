"""Real answers, made odd: a call ends in the right result or in one of our errors."""

import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from deltahub.client import BadResponse, Hub, HubError
from deltahub.client.api.endpoints import Api
from deltahub.client.api.jobs import wait_for_job
from deltahub.client.api.parsing import parse_json
from deltahub.client.api.transport import Transport
from deltahub.client.cli.info import _describe
from deltahub.client.cli.output import table
from deltahub.client.progress import Silent
from support.models.model_folders import contents
from support.service.hostile_hub import HostileHub, Reply, hostile_hub, reply
from support.service.hub import RunningHub
from support.service.odd_json import odd_answers

NAME = "admin/odd"
ROOT = f"/v1/repositories/{NAME}"
UPLOAD = "ab" * 32
FILE = "model.safetensors"


@dataclass(frozen=True)
class Real:
    """The answers of a real hub by `METHOD /path`, the frames of its tensors, and its files."""

    answers: dict[str, bytes]
    frames: dict[str, bytes]
    files: dict[str, bytes]
    commit: str
    tensor: str


@pytest.fixture(scope="module")
def real(hub_server: RunningHub, tmp_path_factory: pytest.TempPathFactory) -> Real:
    folder = tmp_path_factory.mktemp("odd") / "m"
    folder.mkdir()
    rng = np.random.default_rng(3)
    tensors = {f"w.{i}": rng.normal(size=(400, 400)).astype(np.float32) for i in range(2)}
    save_file(tensors, folder / FILE)
    (folder / "config.json").write_bytes(b"{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTAHUB_CACHE", str(folder.parent / "cache"))
        with Hub(hub_server.url, hub_server.admin_token) as hub:
            pushed = hub.push(folder, NAME, base="admin/absent")
    token = hub_server.admin_token
    answers = {
        f"GET {path}": hub_server.call("GET", f"{path}{query}", token=token).body
        for path, query in {
            "/v1/whoami": "", "/v1/repositories": "", ROOT: "", f"{ROOT}/refs": "",
            f"{ROOT}/revision": "?revision=main", f"{ROOT}/info": "?revision=main",
            f"{ROOT}/recipes/{FILE}": "", f"{ROOT}/recipe-bytes/{FILE}": "",
            f"/v1/jobs/{pushed.job_id}": "",
        }.items()
    }  # fmt: skip
    plan = json.loads(answers[f"GET {ROOT}/recipes/{FILE}"])
    stored = [each["id"] for each in plan["tensors"]]
    tensor = stored[0]
    posts = {
        f"{ROOT}/files/query": {"files": [{"sha256": UPLOAD, "size": 7}]},
        f"{ROOT}/tensors/query": {"tensors": [[tensor, 640_000]]},
    }
    for path, body in posts.items():
        answers[f"POST {path}"] = hub_server.call("POST", path, token=token, body=body).body
    answers[f"POST {ROOT}/recipes"] = b'{"state": "proving", "job_id": "abc"}'
    answers["POST /v1/repositories"] = answers[f"PATCH {ROOT}"] = answers[f"GET {ROOT}"]
    answers[f"POST {ROOT}/commits"] = json.dumps(
        {"commit": pushed.commit, "job_id": pushed.job_id, "changed": True}
    ).encode()
    frames = {}
    for each in stored:
        body = {"tensors": [each]}
        frames[each] = hub_server.call("POST", f"{ROOT}/frames", token=token, body=body).body
    return Real(answers, frames, contents(folder), pushed.commit, tensor)


Call = Callable[[Api, Real], Any]


def job_of(real: Real) -> str:
    return next(route.rpartition("/")[2] for route in real.answers if "/v1/jobs/" in route)


# Every call of the client that reads JSON.
CALLS: dict[str, Call] = {
    "GET /v1/whoami": lambda api, real: api.whoami(),
    "GET /v1/repositories": lambda api, real: [*api.list_repositories()],
    "POST /v1/repositories": lambda api, real: api.create_repository(NAME, private=True),
    f"GET {ROOT}": lambda api, real: api.get_repository(NAME),
    f"PATCH {ROOT}": lambda api, real: api.set_private(NAME, private=True),
    f"GET {ROOT}/refs": lambda api, real: api.list_refs(NAME),
    f"GET {ROOT}/revision": lambda api, real: api.get_revision(NAME, "main"),
    f"GET {ROOT}/info": lambda api, real: table(
        [_describe(NAME, api.get_info(NAME, "main", brief=False))]
    ),
    f"GET {ROOT}/recipes/{FILE}": lambda api, real: api.get_recipe_plan(NAME, real.commit, FILE),
    "GET /v1/jobs/": lambda api, real: wait_for_job(api, job_of(real), Silent()),
    f"POST {ROOT}/files/query": lambda api, real: api.query_files(NAME, {UPLOAD: 7}),
    f"POST {ROOT}/tensors/query": lambda api, real: api.query_tensors(NAME, {real.tensor: 640_000}),
    f"POST {ROOT}/recipes": lambda api, real: api.put_recipe(NAME, b"x"),
    f"POST {ROOT}/commits": lambda api, real: api.commit(
        NAME, ref="main", message="", parent=None, base=None, operations=[]
    ),
}


@pytest.fixture(scope="module")
def evil(real: Real) -> Iterator[HostileHub]:
    with hostile_hub() as running:
        yield running


@pytest.fixture(scope="module")
def api(evil: HostileHub) -> Iterator[Api]:
    transport = Transport(evil.url, "dh_secret", patience_s=0)
    yield Api(transport)
    transport.close()


def route_of(call: str, real: Real) -> str:
    return f"{call}{job_of(real)}" if call.endswith("/jobs/") else call


@pytest.mark.parametrize("call", CALLS)
def test_the_real_answer_is_read(call: str, real: Real, evil: HostileHub, api: Api) -> None:
    route = route_of(call, real)
    evil.answers = {route: reply(real.answers[route])}
    CALLS[call](api, real)


@pytest.mark.parametrize("call", CALLS)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_an_odd_answer_is_one_of_our_errors_or_harmless(
    call: str, real: Real, evil: HostileHub, api: Api, data: st.DataObject
) -> None:
    route = route_of(call, real)
    evil.answers = {route: reply(data.draw(odd_answers(real.answers[route])))}
    with contextlib.suppress(HubError):
        CALLS[call](api, real)


def serve(evil: HostileHub, real: Real) -> None:
    """Answer as the real hub does."""
    evil.answers = {route: reply(body) for route, body in real.answers.items()}
    for path, body in real.files.items():
        evil.answers[f"GET {ROOT}/files/{path}"] = ranged(body)

    def frames(handler: Any) -> Reply:
        return reply(b"".join(real.frames[each] for each in json.loads(handler.body)["tensors"]))

    evil.answers[f"POST {ROOT}/frames"] = frames


def pull(evil: HostileHub, folder: Path) -> Path:
    target = folder / "down" / "m"
    with pytest.MonkeyPatch.context() as patch, Hub(evil.url, "dh_x", patience_s=0) as hub:
        patch.setenv("DELTAHUB_CACHE", str(folder / "cache"))
        hub.pull(NAME, to=target)
    return target


def test_a_pull_from_the_same_answers_unchanged_is_right(
    real: Real, evil: HostileHub, tmp_path: Path
) -> None:
    serve(evil, real)
    evil.seen.clear()
    assert contents(pull(evil, tmp_path)) == real.files
    assert any(path.startswith(f"{ROOT}/frames") for _, path, _ in evil.seen)


def damaged(body: bytes, data: st.DataObject) -> bytes:
    at = data.draw(st.integers(0, len(body) - 1))
    if data.draw(st.booleans()):
        return body[:at]
    return body[:at] + bytes([body[at] ^ data.draw(st.integers(1, 255))]) + body[at + 1 :]


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_pull_from_a_hub_that_answers_oddly_writes_the_right_bytes_or_none(
    real: Real, evil: HostileHub, tmp_path: Path, data: st.DataObject
) -> None:
    serve(evil, real)
    changed = data.draw(st.sampled_from(["revision", "revision", "plan", "recipe", "frames"]))
    if changed == "frames":
        frames = {each: damaged(body, data) for each, body in real.frames.items()}
        evil.answers[f"POST {ROOT}/frames"] = lambda handler: reply(
            b"".join(frames[each] for each in json.loads(handler.body)["tensors"])
        )
    elif changed == "recipe":
        route = f"GET {ROOT}/recipe-bytes/{FILE}"
        evil.answers[route] = reply(damaged(real.answers[route], data))
    else:
        route = f"GET {ROOT}/" + ("revision" if changed == "revision" else f"recipes/{FILE}")
        evil.answers[route] = reply(data.draw(odd_answers(real.answers[route])))
    with tempfile.TemporaryDirectory(dir=tmp_path) as name:
        folder = Path(name)
        with contextlib.suppress(HubError):
            pull(evil, folder)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        target = folder / "down" / "m"
        known = {*real.files.values(), b""}
        for path in folder.rglob("*"):
            if path.is_file():
                assert path.is_relative_to(target), path
                is_unfinished = ".cache" in path.relative_to(target).parts
                assert is_unfinished or path.read_bytes() in known, path


def ranged(body: bytes) -> Callable[[Any], Reply]:
    def answer(handler: Any) -> Reply:
        asked = handler.headers.get("Range")
        if asked is None:
            return reply(body)
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        return reply(body[first : last + 1], 206)

    return answer


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_odd_headers_of_an_upload_are_one_of_our_errors(
    evil: HostileHub, api: Api, data: st.DataObject
) -> None:
    values = st.sampled_from(
        ["", "-1", "7", "8", "1_0", "9" * 5000, "\xb2", "x", "7 ", "0x7", "7.0"]
    )
    headers = {
        f"Upload-{key}": data.draw(values)
        for key in ("Offset", "Length")
        if data.draw(st.booleans())
    }
    evil.answers = {f"HEAD /v1/uploads/{UPLOAD}": Reply(b"", 200, headers)}
    try:
        found = api.get_upload(UPLOAD, 7)
    except BadResponse:
        return
    assert found is not None
    assert (found.received, found.size) == (7, 7)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>", "not JSON"),
        (b'{"name": NaN}', "NaN is no number"),
        (b'{"name": 1e999}', "too large"),
        (b'{"name": "a", "name": "b"}', "a key twice"),
        (b'{"name": "\xff"}', "not JSON"),
        (b'{"name": "\\ud800"}', "not JSON"),
        (b'{"name": 7}', "name: 7 is not text"),
        (b'{"name": {}}', "name: an object is not text"),
        (b'{"scope": "read"}', "has no name"),
        (b'{"name": "a", "is_admin": 1}', "is_admin: 1 is not true or false"),
        (b'{"name": "a", "namespaces": {}}', "namespaces: an object is not a list"),
        (b"[" * 100 + b"]" * 100, "nest deeper"),
        (b"[" * 100_000, "arrays and objects"),
        (b"null", "None is not a WhoAmI"),
        (b"", "not JSON"),
    ],
)
def test_the_error_names_the_url_and_what_is_odd(
    evil: HostileHub, api: Api, body: bytes, reason: str
) -> None:
    evil.answers = {"GET /v1/whoami": reply(body)}
    with pytest.raises(BadResponse) as odd:
        api.whoami()
    assert f"the hub's answer to GET {evil.url}/v1/whoami is odd" in odd.value.message
    assert reason in odd.value.message


def test_an_error_with_an_odd_body_is_known_by_its_status(evil: HostileHub, api: Api) -> None:
    for body in (b"[" * 100_000, b'{"error": {"code": 7, "message": []}}', b"\xff" * 100, b"7"):
        evil.answers = {"GET /v1/whoami": reply(body, 403)}
        with pytest.raises(HubError, match="the hub answered 403") as refused:
            api.whoami()
        assert refused.value.code == "forbidden"


def test_pages_that_never_end_are_an_error(evil: HostileHub, api: Api) -> None:
    page = {"items": [], "next_cursor": "again"}
    evil.answers = {"GET /v1/repositories": reply(page)}
    evil.seen.clear()
    with pytest.raises(BadResponse, match="do not end"):
        list(api.list_repositories())
    assert len(evil.seen) == 2  # the second page names itself as the next one
    counts = itertools.count()
    evil.answers = {
        "GET /v1/repositories": lambda _: reply({**page, "next_cursor": f"{next(counts)}"})
    }
    with pytest.raises(BadResponse, match="do not end"):
        list(api.list_repositories())


def test_text_with_braces_in_strings_is_no_deep_nesting() -> None:
    assert parse_json(json.dumps({"a": "[{" * 1000}).encode()) == {"a": "[{" * 1000}
