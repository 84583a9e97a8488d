"""Protection of a server that needs no key from the pages of web sites, in a browser that reaches
it.

A site whose name is made to lead to this machine (DNS rebinding) counts as the server's own page:
the Host that the browser sends gives it away. A page may also send POSTs elsewhere, if not read the
answers: the browser says where they come from. Other programs send neither a foreign Host nor an
Origin.
"""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from smartspec.server.http.errors import APIError

READING = ("GET", "HEAD", "OPTIONS")
ANY = "*"


@dataclass(frozen=True)
class BrowserCheck:
    """Raises APIError 403 for requests under another name than the server's own, and for those that
    change something from pages of other sites (as Go's net/http.CrossOriginProtection tells them).

    hosts: names of the server, beside localhost and addresses; `*` for any.
    origins: sites whose pages may call it, `*` for all.
    """

    hosts: Collection[str]
    origins: Collection[str]

    def __call__(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        for host in headers.getlist("host"):
            if not self._is_own_name(name_of(host)):
                raise APIError(
                    403,
                    f"Host {host[:256]!r} is not a name of this server: use its address or "
                    "localhost, or start it with --allowed-host NAME",
                    code="host_not_allowed",
                )
        origin = headers.get("origin", "")
        if scope["method"] not in READING and not self._may_call(origin, headers):
            raise APIError(
                403,
                f"pages of {origin[:256] or 'other sites'} may not call this server: start it with "
                "--cors-origin SITE",
                code="origin_not_allowed",
            )

    def _is_own_name(self, name: str) -> bool:
        # No browser sends an empty Host. A name without a dot may be any machine's of the network.
        is_local = name in ("", "localhost") or name.endswith(".localhost") or _is_address(name)
        return is_local or name in self.hosts or ANY in self.hosts

    def _may_call(self, origin: str, headers: Headers) -> bool:
        if ANY in self.origins or origin in self.origins:
            return True
        if "sec-fetch-site" in headers:  # which no page can set
            return headers["sec-fetch-site"] in ("same-origin", "none")
        own = [host.lower() for host in headers.getlist("host")]
        place = origin.partition("://")[2].lower()
        return not origin or place in own or (bool(place) and name_of(place) in self.hosts)


def name_of(host: str) -> str:
    """A Host without its port, in small letters."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
