"""API keys: which client may use which path. They are checked before a body is read."""

import hashlib
import ipaddress
import math
from collections.abc import Collection, Mapping
from pathlib import Path

from starlette.types import Scope

from smartspec.core.origin import UNKNOWN_ORIGIN, Origin
from smartspec.server.http.errors import APIError

OPEN_PATHS = frozenset(
    {"/health", "/live", "/ping", "/version", "/metrics", "/docs", "/openapi.json"}
)
ADMIN_PATHS = {"/metrics", "/v1/speculation", "/v1/speculation/events"}
NEEDS_KEY = (
    "wrong or missing API key: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'"
)
NEEDS_ADMIN_KEY = "this needs the key given as --admin-key"


class ApiKeys:
    """The keys of a server. shares: each client key and its share of the engine. admin_key: what
    ADMIN_PATHS need. shared_cache: whether requests of different keys share cached prefixes and
    what drafters remember.

    Raises ValueError for a key that no client could send.
    """

    def __init__(
        self,
        shares: Mapping[str, float] | None = None,
        admin_key: str | None = None,
        shared_cache: bool = False,
    ):
        self._clients = {_checked_digest(key): share for key, share in (shares or {}).items()}
        self.shared_cache = shared_cache
        self._admin = None if admin_key is None else _checked_digest(admin_key)

    def __bool__(self) -> bool:
        """True if clients need a key."""
        return bool(self._clients)

    def origin(self, scope: Scope, open_paths: Collection[str] = OPEN_PATHS) -> Origin:
        """The sender of a request: its key or, without keys, its address. Raises APIError 401 where
        a key is missing. open_paths: those that need none."""
        given = _key_of(dict(scope["headers"]))
        # Digests are compared, so that the time it takes says nothing about the key.
        digest = None if given is None else _digest(given)
        path = scope["path"]
        if self._admin is not None and path in ADMIN_PATHS:
            if digest != self._admin:
                raise _unauthorized(NEEDS_ADMIN_KEY)
            return UNKNOWN_ORIGIN
        if self._clients and path not in open_paths:
            if digest not in self._clients:
                raise _unauthorized(NEEDS_KEY)
            return Origin(
                digest, self._clients[digest], cache_salt="" if self.shared_cache else digest
            )
        return Origin(_network(scope["client"][0])) if scope["client"] else UNKNOWN_ORIGIN

    def check(self, scope: Scope, open_paths: Collection[str]) -> None:
        """What runs after it finds the Origin in the request's state. Raises as origin."""
        scope.setdefault("state", {})["origin"] = self.origin(scope, open_paths)


def read_key_file(path: Path) -> dict[str, float]:
    """Keys and shares from a file: a key per line, its share after a space (1 if there is none),
    `#` for comments.

    Raises ValueError naming the line at fault, OSError if the file cannot be read.
    """
    shares: dict[str, float] = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: save it as UTF-8") from error
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            share = float(words[1]) if len(words) > 1 else 1.0
        except ValueError:
            share = math.nan
        if len(words) > 2 or not 0.0 < share < math.inf or words[0] in shares:
            raise ValueError(
                f"{path}, line {number}: expected one new key and, if any, a share above 0"
            )
        shares[words[0]] = share
    if not shares:
        raise ValueError(f"{path} holds no keys: write one per line")
    return shares


def _checked_digest(key: str) -> str:
    if not key:
        raise ValueError("an API key is empty: give one, or leave the option and the variable out")
    if not key.isprintable() or " " in key:
        raise ValueError(
            "an API key holds spaces or control characters, which a client cannot send: choose "
            "another"
        )
    return _digest(key.encode())


def _key_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The bearer token or, where there is none, `x-api-key`, as Anthropic's clients send it. None:
    neither."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token if scheme.lower() == b"bearer" else headers.get(b"x-api-key")


def _unauthorized(message: str) -> APIError:
    challenge = {"WWW-Authenticate": "Bearer"}  # RFC 9110, 15.5.2
    return APIError(401, message, code="invalid_api_key", headers=challenge)


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def _network(address: str) -> str:
    """The address itself. Of IPv6 the /64 network: one client usually has all addresses of it."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address  # of a socket file, or what a proxy said
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address
