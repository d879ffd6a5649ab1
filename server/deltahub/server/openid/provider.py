"""A provider of OpenID Connect: its addresses and keys, and what it says about a person.

The flow is the authorization code with PKCE (RFC 7636), a state and a nonce. Authlib speaks to the
provider and checks the claims of its ID tokens, joserfc their signatures.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httpx2
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from deltahub.registry.errors import Forbidden, Unavailable
from deltahub.server.settings import ServerSettings

T = TypeVar("T")

SCOPES: Final = "openid profile email"
_TIMEOUT_S: Final = 10.0
# How long addresses and keys are believed. Unknown keys are asked for at once.
_KEPT_S: Final = 3600.0
# Signatures by a key that only the provider has. `none` and those by a shared secret are refused.
_ALGORITHMS: Final = frozenset(
    "RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA Ed25519".split()
)
_LEEWAY_S: Final = 120
_NEEDED: Final = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True)
class Person:
    """Somebody whom the provider vouches for."""

    issuer: str
    subject: str
    wished_name: str


class Provider:
    """The provider that the settings name. Safe to share between threads."""

    def __init__(self, settings: ServerSettings) -> None:
        assert settings.oidc_issuer is not None
        self._issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        secret = settings.oidc_client_secret
        self._client_secret = None if secret is None else secret.get_secret_value()
        self._domains = _listed(settings.oidc_email_domains.lower())
        self._groups = _listed(settings.oidc_groups)
        self._lock = threading.Lock()
        self._found: tuple[float, Mapping[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None

    @property
    def issuer(self) -> str:
        """The issuer of all identities."""
        return self._issuer

    def login_address(self, back: str, state: str, nonce: str, verifier: str) -> str:
        """Return where a browser is sent to log in. back: where the provider sends it then.

        Raises Unavailable if the provider does not answer.
        """
        with self._client(back) as client:
            address, _ = client.create_authorization_url(
                self._metadata()["authorization_endpoint"],
                state=state, nonce=nonce, code_verifier=verifier,
            )  # fmt: skip
        return str(address)

    def person_of(self, code: str, back: str, nonce: str, verifier: str) -> Person:
        """Return whom the provider gave this code for.

        Raises Forbidden if it gave none, or may not let this person in here; Unavailable.
        """
        with self._client(back) as client:
            address = self._metadata()["token_endpoint"]
            answer = _asked(
                lambda: client.fetch_token(
                    address, grant_type="authorization_code", code=code, code_verifier=verifier
                )
            )
            claims = self._claims_of(answer, nonce)
            if not claims.get("preferred_username") or self._lacks_claims(claims):
                claims = {**self._more_about(client, claims["sub"]), **claims}
        self._check_allowed(claims)
        name = claims.get("preferred_username") or claims.get("email") or ""
        return Person(self._issuer, str(claims["sub"]), str(name))

    def _client(self, back: str) -> OAuth2Client:
        method = "client_secret_basic"
        if self._client_secret is None:
            method = "none"
        elif self._found is not None:
            supported = self._found[1].get("token_endpoint_auth_methods_supported")
            if supported and method not in supported and "client_secret_post" in supported:
                method = "client_secret_post"
        return OAuth2Client(
            self._client_id, self._client_secret, token_endpoint_auth_method=method,
            scope=SCOPES, redirect_uri=back, code_challenge_method="S256",
            timeout=_TIMEOUT_S, follow_redirects=False,
        )  # fmt: skip

    def _metadata(self) -> Mapping[str, Any]:
        with self._lock:
            if self._found is None or self._found[0] < time.monotonic() - _KEPT_S:
                address = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
                self._found = (time.monotonic(), self._checked(_json_at(address)))
            return self._found[1]

    def _checked(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        if found.get("issuer") != self._issuer:
            raise Unavailable(
                f"the provider calls itself {str(found.get('issuer'))[:200]!r}: the operator must"
                " write DELTAHUB_SERVER_OIDC_ISSUER exactly so"
            )
        is_secure = urlsplit(self._issuer).scheme == "https"
        for each in _NEEDED:
            scheme = urlsplit(str(found.get(each, ""))).scheme
            if scheme != "https" and (is_secure or scheme != "http"):
                raise Unavailable(f"the provider gives no address with https as its {each}")
        return found

    def _key_set(self, *, is_fresh: bool) -> KeySet:
        address = self._metadata()["jwks_uri"]
        with self._lock:
            oldest = time.monotonic() - _KEPT_S
            if is_fresh or self._keys is None or self._keys[0] < oldest:
                found: Any = _json_at(address)
                self._keys = (time.monotonic(), KeySet.import_key_set(found))
            return self._keys[1]

    def _claims_of(self, answer: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        """The claims of the ID token in an answer. Raises Forbidden unless they are for us."""
        id_token = answer.get("id_token")
        if not isinstance(id_token, str):
            raise Forbidden("the provider sent no ID token, so the hub does not know who you are")
        try:
            try:
                decoded = self._decoded(id_token, is_fresh=False)
            except InvalidKeyIdError:
                decoded = self._decoded(id_token, is_fresh=True)
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                {
                    "iss": {"essential": True, "values": [self._issuer]},
                    "aud": {"essential": True, "value": self._client_id},
                },
                {
                    "nonce": nonce,
                    "client_id": self._client_id,
                    "access_token": answer.get("access_token"),
                },
            )
            claims.validate(leeway=_LEEWAY_S)
        except (JoseError, AuthlibBaseError, ValueError, KeyError) as error:
            raise Forbidden(
                "the provider's ID token is not valid for this login: try again; if that does not"
                " help, ask the hub's administrator"
            ) from error
        return dict(claims)

    def _decoded(self, id_token: str, *, is_fresh: bool) -> jwt.Token:
        offered = self._metadata().get("id_token_signing_alg_values_supported") or ["RS256"]
        algorithms = [each for each in offered if each in _ALGORITHMS]
        registry = JWSRegistry(algorithms=algorithms, strict_check_header=False)
        return jwt.decode(id_token, self._key_set(is_fresh=is_fresh), registry=registry)

    def _lacks_claims(self, claims: Mapping[str, Any]) -> bool:
        lacks_email = bool(self._domains) and "email" not in claims
        return lacks_email or (bool(self._groups) and "groups" not in claims)

    def _more_about(self, client: OAuth2Client, subject: str) -> Mapping[str, Any]:
        """What the provider says at its user info endpoint, which many use for most claims."""
        address = self._metadata().get("userinfo_endpoint")
        if not isinstance(address, str):
            return {}
        answer = _asked(lambda: client.get(address))
        found = _json_of(answer) if answer.status_code == 200 else {}
        return found if found.get("sub") == subject else {}

    def _check_allowed(self, claims: Mapping[str, Any]) -> None:
        if self._domains:
            email = str(claims.get("email") or "")
            is_verified = claims.get("email_verified") in (True, "true")
            if not is_verified or email.rpartition("@")[2].lower() not in self._domains:
                raise Forbidden(
                    f"only people with a verified e-mail address of {' or '.join(self._domains)}"
                    " may log in here"
                )
        if self._groups:
            groups = claims.get("groups")
            own = {groups} if isinstance(groups, str) else set(groups or ())
            if not own & set(self._groups):
                raise Forbidden(
                    "your account is in no group that may use this hub: ask its administrator"
                )


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _json_at(address: str) -> Mapping[str, Any]:
    return _json_of(_asked(lambda: httpx2.get(address, timeout=_TIMEOUT_S, follow_redirects=False)))


def _json_of(answer: httpx2.Response) -> Mapping[str, Any]:
    try:
        found = answer.json() if answer.status_code == 200 else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Unavailable(
            f"the provider answered {answer.status_code} without the JSON that was asked for: try"
            " again later, or ask the hub's administrator"
        )
    return found


def _asked(ask: Callable[[], T]) -> T:
    """Return the answer. Raises Unavailable without one, and Forbidden if the provider refuses."""
    try:
        return ask()
    except httpx2.HTTPError as error:
        raise Unavailable(
            "the provider does not answer: try again later, or log in another way"
        ) from error
    except (AuthlibBaseError, ValueError) as error:
        raise Forbidden(
            "the provider did not confirm this login: its codes work once and for a short time, so"
            " try again"
        ) from error
