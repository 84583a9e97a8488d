"""The access to a server: keys from options and variables, where it may listen without any, and
from which sites, under which names."""

import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smartspec.server.http.keys import ApiKeys

KEY_VARIABLES = ("SMARTSPEC_API_KEY", "SMARTSPEC_API_KEY_FILE", "SMARTSPEC_ADMIN_KEY")


def api_keys(
    api_key: str | None, key_file: Path | None, admin_key: str | None, shared_cache: bool
) -> "ApiKeys":
    """The keys of the options. Raises ValueError for an empty one: the operator meant to set a
    key."""
    from smartspec.server.http.keys import ApiKeys, read_key_file

    for variable in KEY_VARIABLES:
        if os.environ.get(variable) == "":
            raise ValueError(f"{variable} is set but empty: give it a value, or unset it")
    shares = {} if key_file is None else read_key_file(key_file)
    if api_key is not None:
        shares[api_key] = 1.0
    return ApiKeys(shares, admin_key, shared_cache)


def check_exposure(listener: socket.socket, has_keys: bool, no_api_key: bool) -> None:
    """Raises ValueError if other machines could use the server without a key, and no option allows
    that."""
    if not (has_keys or no_api_key or _is_loopback(listener)):
        raise ValueError(
            f"--host {listener.getsockname()[0]} lets other machines use this server without a "
            "key: give --api-key or --api-key-file, or say --no-api-key"
        )


def cors_origins(option: str | None) -> tuple[str, ...]:
    """The sites of --cors-origin. Raises ValueError for what no browser would name as one, and
    would never match."""
    origins = tuple(part.strip() for part in option.split(",")) if option else ()
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+", origin):
            raise ValueError(
                f"--cors-origin {origin}: write sites as https://a.example, without a path, or *"
            )
    return origins


def allowed_hosts(
    option: str | None, listener: socket.socket, has_keys: bool
) -> tuple[str, ...] | None:
    """The names of --allowed-host. None where any name will do: by default, if clients need a key
    or other machines may use the server. Raises ValueError for what is no name."""
    if option is None:
        return None if has_keys or not _is_loopback(listener) else ()
    names = tuple(part.strip().lower() for part in option.split(","))
    for name in names:
        if not re.fullmatch(r"\*|[\w-]+(\.[\w-]+)*", name):
            raise ValueError(
                f"--allowed-host {name}: write names as a.example, without a port, or *"
            )
    return names


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
