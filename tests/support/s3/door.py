"""Sends requests to the S3 door of a hub, byte for byte as they are given, signed by botocore."""

import http.client
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from deltahub.client import Hub
from deltahub.client.tokens import S3Keys
from support.service.hub import Answer, RunningHub

_SPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


@dataclass(frozen=True)
class Door:
    """The S3 door of a hub, with the keys of somebody; None: unsigned. trust: of an https URL."""

    url: str
    keys: S3Keys | None = None
    trust: ssl.SSLContext | None = None

    @property
    def guests(self) -> "Door":
        return replace(self, keys=None)

    def by(self, hub: RunningHub, token: str) -> "Door":
        """The door with the keys of a token."""
        with Hub(hub.url, token) as client:
            return replace(self, keys=client.s3_keys())

    def call(
        self,
        method: str,
        path: str,
        query: str = "",
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request. path, query: as they are sent."""
        signed = self.signed(method, path, query, body=body, headers=headers)
        return self.send(method, path, query, body=body, headers=signed)

    def signed(
        self,
        method: str,
        path: str,
        query: str = "",
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """The headers of a request, with its signature."""
        request = AWSRequest(method, self._url(path, query), dict(headers or {}), body)
        if self.keys is not None:
            S3SigV4Auth(self._credentials(), "s3", "eu-central-1").add_auth(request)
        return dict(request.headers.items())

    def link(self, path: str, query: str = "", expires_s: int = 60) -> tuple[str, str]:
        """(path, query) of a signed link."""
        request = AWSRequest("GET", self._url(path, query))
        S3SigV4QueryAuth(self._credentials(), "s3", "us-east-1", expires_s).add_auth(request)
        return path, urlsplit(request.url).query

    def send(
        self,
        method: str,
        path: str,
        query: str = "",
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request as it is."""
        host, port = urlsplit(self.url).netloc.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        if self.trust is not None:
            connection = http.client.HTTPSConnection(host, int(port), context=self.trust)
        try:
            target = f"{path}?{query}" if query else path
            connection.request(method, target, body or None, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, bucket: str, key: str, **headers: str) -> Answer:
        return self.call("GET", f"/{bucket}/{quote(key)}", headers=headers)

    def list(self, bucket: str, **asked: Any) -> "Listed":
        """A page of a bucket. Names of parameters have _ in place of -."""
        named = {name.replace("_", "-"): str(value) for name, value in asked.items()}
        query = urlencode(named, quote_via=quote)
        answer = self.call("GET", f"/{bucket}", query)
        assert answer.status == 200, answer.body
        return Listed(ElementTree.fromstring(answer.body))

    def pages(self, bucket: str, **asked: Any) -> "Iterator[Listed]":
        """All pages of a bucket, by version 2, or with list_type=1 by version 1."""
        is_second = asked.get("list_type", 2) == 2
        while True:
            page = self.list(bucket, **asked)
            yield page
            if page.text("IsTruncated") == "false":
                return
            if is_second:
                asked["continuation_token"] = page.text("NextContinuationToken")
            else:
                asked["marker"] = page.text("NextMarker")

    def _url(self, path: str, query: str) -> str:
        return f"{self.url}{path}?{query}" if query else f"{self.url}{path}"

    def _credentials(self) -> Credentials:
        assert self.keys is not None
        return Credentials(self.keys.access_key_id, self.keys.secret_access_key)


@dataclass(frozen=True)
class Listed:
    """A page of a list."""

    root: ElementTree.Element

    def text(self, name: str) -> str:
        return self.root.findtext(f"{_SPACE}{name}") or ""

    @property
    def keys(self) -> list[str]:
        return self._texts("Contents", "Key")

    @property
    def folders(self) -> list[str]:
        return self._texts("CommonPrefixes", "Prefix")

    @property
    def objects(self) -> list[dict[str, str]]:
        """The elements of each object, by their names."""
        found = self.root.findall(f"{_SPACE}Contents")
        return [{part.tag.removeprefix(_SPACE): part.text or "" for part in one} for one in found]

    def _texts(self, element: str, part: str) -> list[str]:
        found = self.root.findall(f"{_SPACE}{element}/{_SPACE}{part}")
        return [each.text or "" for each in found]


def code_of(answer: Answer) -> tuple[int, str]:
    """(status, code) of an error."""
    root = ElementTree.fromstring(answer.body)
    assert root.tag == "Error", answer.body
    return answer.status, root.findtext("Code") or ""


def sentence_of(answer: Answer) -> str:
    return ElementTree.fromstring(answer.body).findtext("Message") or ""
