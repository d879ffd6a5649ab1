"""Downloads by Xet: any file and range, for callers who may read the file."""

from hashlib import sha256
from random import Random
from typing import Any

import pytest
from starlette.requests import Request

from clients.environments import NAMES, environment
from deltahub.registry.access import organizations, tokens
from deltahub.registry.db.models import File
from deltahub.registry.xet.chunks import ChunkHeader
from deltahub.server.hf.xet import downloads
from deltahub.server.hf.xet.downloads import MAX_HTTP_BYTES, xet_from, xet_headers
from deltahub.server.settings import ServerSettings
from deltahub.server.signing import Signer
from support.registry.opened import end_token
from support.service.hub import Answer, RunningHub

DATA = Random(8).randbytes(1_000_000)
SHA256 = sha256(DATA).hexdigest()


@pytest.fixture(scope="module")
def secret(hub: RunningHub) -> str:
    """A token of the owner of dan-d/secret, the repository with the file."""
    token = hub.user("dan-d")
    hub.create("dan-d/secret", private=True, token=token)
    hub.create("dan-d/open", token=token)
    hub.commit("dan-d/secret", {"a.bin": DATA, "empty.bin": b""}, token)
    return token


class Service:
    def __init__(self, hub: RunningHub, name: str, token: str | None) -> None:
        answer = hub.call("GET", f"/api/models/{name}/xet-read-token/main", token=token)
        self.hub = hub
        self.url = answer.json()["casUrl"].removeprefix(hub.url)
        self.token = answer.json()["accessToken"]

    def describe(self, digest: str, version: int = 2, **headers: str) -> Answer:
        path = f"{self.url}/v{version}/reconstructions/{digest}"
        return self.hub.call("GET", path, token=self.token, headers=headers)


def link(hub: RunningHub, url: str, first: int, last: int) -> Answer:
    """Follow a link as a client does: with a range, without a token."""
    assert url.startswith(hub.url + "/cas/xorbs/")
    return hub.call("GET", url.removeprefix(hub.url), headers={"Range": f"bytes={first}-{last}"})


def chunks_of(body: bytes) -> bytes:
    out = b""
    while body:
        header = ChunkHeader.parse(body)
        out += body[8 : 8 + header.stored]
        body = body[8 + header.stored :]
    return out


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("start", "end"), [(0, 1_000_000), (131_071, 131_073), (999_999, 1 << 40)])
def test_the_links_of_a_description_lead_to_its_bytes(
    hub: RunningHub, secret: str, version: int, start: int, end: int
) -> None:
    service = Service(hub, "dan-d/secret", secret)
    answer = service.describe(SHA256, version, Range=f"bytes={start}-{end - 1}")
    assert answer.status == 200, answer.body
    reconstruction: dict[str, Any] = answer.json()
    found = b""
    for term in reconstruction["terms"]:
        (fetch,) = reconstruction["fetch_info" if version == 1 else "xorbs"][term["hash"]]
        if version == 1:
            chunks, place = fetch["range"], fetch["url_range"]
        else:
            ((chunks, place),) = [(each["chunks"], each["bytes"]) for each in fetch["ranges"]]
        assert chunks == term["range"]
        part = link(hub, fetch["url"], place["start"], place["end"])
        assert (part.status, len(part.body)) == (206, place["end"] + 1 - place["start"])
        data = chunks_of(part.body)
        assert len(data) == term["unpacked_length"]
        found += data
    offset = reconstruction["offset_into_first_range"]
    assert found[offset : offset + end - start] == DATA[start:end]


def test_only_the_files_that_the_caller_may_read_are_described(
    hub: RunningHub, secret: str
) -> None:
    eve = hub.user("eve-d")
    for token in (eve, None):
        answer = Service(hub, "dan-d/open", token).describe(SHA256)
        assert (answer.status, answer.headers["X-Error-Code"]) == (404, "EntryNotFound")
    mine = Service(hub, "dan-d/secret", secret)
    assert mine.describe(sha256(b"").hexdigest()).status == 404
    assert mine.describe("0" * 64).status == 404
    assert mine.describe("x").status == 422
    assert mine.describe(SHA256, Range="bytes=1000000-").status == 416
    mine.token = Service(hub, "dan-d/open", secret).token
    assert mine.describe(SHA256).status == 401


def test_a_link_that_is_over_or_forged_makes_the_client_ask_for_another(
    hub: RunningHub, secret: str
) -> None:
    reconstruction = Service(hub, "dan-d/secret", secret).describe(SHA256).json()
    ((fetch,),) = reconstruction["xorbs"].values()
    signer = Signer.of_folder(hub.data_dir)
    claims = signer.verify("xorb", fetch["url"].rpartition("/")[2])
    claims.pop("exp")
    for token in (signer.sign("xorb", claims, -1), signer.sign("cas", claims, 60), "x"):
        assert link(hub, f"{hub.url}/cas/xorbs/{token}", 0, 9).status == 403
    other = signer.sign("xorb", {**claims, "sha256": "0" * 64}, 60)
    assert link(hub, f"{hub.url}/cas/xorbs/{other}", 0, 9).status == 404
    assert link(hub, fetch["url"], 1 << 30, 1 << 31).status == 416


@pytest.mark.parametrize("ends", ["revoked", "expired"])
def test_a_link_ends_with_the_token_for_which_it_was_made(hub: RunningHub, ends: str) -> None:
    eve = f"eve-{ends}"
    token = hub.user(eve)
    hub.create(f"{eve}/m", private=True, token=token)
    hub.commit(f"{eve}/m", {"a.bin": DATA}, token)
    reconstruction = Service(hub, f"{eve}/m", token).describe(SHA256).json()
    url = reconstruction["xorbs"][reconstruction["terms"][0]["hash"]][0]["url"]
    assert link(hub, url, 0, 9).status == 206
    end_token(hub.registry, eve, ends)
    tokens.create_token(hub.registry, eve, "write")
    assert link(hub, url, 0, 9).status == 403


def test_a_link_ends_with_the_right_to_read(hub: RunningHub) -> None:
    token = hub.user("fay-d")
    hub.create("fay-d/m", token=token)
    hub.commit("fay-d/m", {"a.bin": DATA}, token)
    reconstruction = Service(hub, "fay-d/m", None).describe(SHA256).json()
    url = reconstruction["xorbs"][reconstruction["terms"][0]["hash"]][0]["url"]
    assert link(hub, url, 0, 9).status == 206
    change = {"private": True}
    assert hub.call("PUT", "/api/models/fay-d/m/settings", token=token, body=change).status == 200
    assert link(hub, url, 0, 9).status == 404


@pytest.mark.parametrize("ends", ["private", "deleted", "left"])
def test_a_link_ends_with_the_repository_that_shows_the_file(hub: RunningHub, ends: str) -> None:
    """Any repository serves a file that the caller may read in another repository."""
    ann, bob = hub.user(f"ann-{ends}"), hub.user(f"bob-{ends}")
    organizations.create_organization(hub.registry, f"lab-{ends}")
    organizations.add_member(hub.registry, f"lab-{ends}", f"ann-{ends}", "admin")
    organizations.add_member(hub.registry, f"lab-{ends}", f"bob-{ends}", "read")
    shown, other = f"lab-{ends}/shown", f"lab-{ends}/asked"
    hub.create(shown, private=ends == "left", token=ann)
    hub.create(other, private=ends == "left", token=ann)
    data = Random(ends).randbytes(1000)
    hub.commit(shown, {"a.bin": data}, ann)
    digest = sha256(data).hexdigest()
    reconstruction = Service(hub, other, bob if ends == "left" else None).describe(digest).json()
    ((fetch,),) = reconstruction["xorbs"].values()
    assert link(hub, fetch["url"], 0, 9).status == 206
    if ends == "private":
        hub.call("PUT", f"/api/models/{shown}/settings", token=ann, body={"private": True})
    elif ends == "deleted":
        assert hub.call("DELETE", f"/v1/repositories/{shown}", token=ann).status == 204
    else:
        organizations.remove_member(hub.registry, f"lab-{ends}", f"bob-{ends}")
    assert link(hub, fetch["url"], 0, 9).status == 404


def asking(client: str) -> Request:
    headers = [(b"user-agent", client.encode()), (b"host", b"hub:80")]
    return Request({"type": "http", "headers": headers, "path": "/", "scheme": "http",
                    "query_string": b"", "server": ("hub", 80)})  # fmt: skip


def test_clients_are_told_to_download_so_as_far_as_is_known_of_them() -> None:
    on, off = ServerSettings(), ServerSettings(has_xet_downloads=False)
    beyond_http = MAX_HTTP_BYTES + 1
    for release, least in {
        "0.33.5": None, "0.34.0": beyond_http, "0.36.2": beyond_http, "0.37.0": beyond_http,
        "1.0.0.rc1": beyond_http, "1.4.1": beyond_http, "1.26.1": beyond_http,
        "1.27.0": beyond_http, "1.33.0": beyond_http, "2.0.0": 1, "2.4.0": 1, "2.5.0": 1,
        "3.0.0": 1, "22.4.0": 1,
    }.items():  # fmt: skip
        client = asking(f"unknown/None; hf_hub/{release}; python/3.11; torch/2.9")
        assert xet_from(on, client) == least, release
        assert xet_from(off, client) is None
    for other in ("hf_hub/2", "hf_hub/2.x.1", "hf_hub/", "curl/8", "", "hf_hub/" + "9" * 5000):
        assert xet_from(on, asking(other)) is None


@pytest.mark.parametrize("name", NAMES)
def test_the_clients_of_the_tests_are_known(name: str) -> None:
    release = ".".join(map(str, environment(name).version))
    assert xet_from(ServerSettings(), asking(f"hf_hub/{release}; python/3.11")) is not None


def test_the_headers_name_the_file_and_where_the_token_is() -> None:
    file = File(sha256=SHA256, size=5)
    assert xet_headers(asking(""), "a/b c", "f" * 40, file) == {
        "X-Xet-Hash": SHA256,
        "Link": f'<http://hub:80/api/models/a/b%20c/xet-read-token/{"f" * 40}>; rel="xet-auth"',
    }


def test_only_clients_that_are_known_are_told_of_it(
    hub: RunningHub, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = "unknown/None; hf_hub/1.26.1; python/3.11"
    for agent, most, is_told in (
        ("unknown/None; hf_hub/2.4.0; python/3.11", 50_000_000_000, True),
        (older, 50_000_000_000, False),
        (older, len(DATA), False),
        (older, len(DATA) - 1, True),
        ("unknown/None; hf_hub/1.33.0; python/3.11", len(DATA) - 1, True),
        ("unknown/None; hf_hub/2.9.0; python/3.11", 50_000_000_000, True),
        ("curl/8", 1, False),
    ):
        monkeypatch.setattr(downloads, "MAX_HTTP_BYTES", most)
        headers = {"User-Agent": agent}
        for path, is_large in (("a.bin", True), ("empty.bin", False)):
            url = f"/dan-d/secret/resolve/main/{path}"
            answer = hub.call("HEAD", url, token=secret, headers=headers)
            expected = SHA256 if is_told and is_large else None
            assert answer.headers.get("X-Xet-Hash") == expected
            assert ("xet-auth" in answer.headers.get("Link", "")) == (expected is not None)
        url = "/api/models/dan-d/secret/tree/main"
        tree = hub.call("GET", url, token=secret, headers=headers).json()
        with_xet = {item["path"] for item in tree if "xetHash" in item}
        assert with_xet == ({"a.bin"} if is_told else set())
