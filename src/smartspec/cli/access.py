"""Who may use a server: keys from options and variables, where it may listen without any, and from which sites."""

import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smartspec.server.http.keys import ApiKeys

KEY_VARIABLES = ("SMARTSPEC_API_KEY", "SMARTSPEC_API_KEY_FILE", "SMARTSPEC_ADMIN_KEY")


def api_keys(api_key: str | None, key_file: Path | None, admin_key: str | None, shared_cache: bool) -> "ApiKeys":
    """The keys of the options. Raises ValueError for an empty one: the operator meant to set a key."""
    from smartspec.server.http.keys import ApiKeys, read_key_file

    for variable in KEY_VARIABLES:
        if os.environ.get(variable) == "":
            raise ValueError(f"{variable} is set but empty: give it a value, or unset it")
    shares = {} if key_file is None else read_key_file(key_file)
    if api_key is not None:
        shares[api_key] = 1.0
    return ApiKeys(shares, admin_key, shared_cache)


def check_exposure(listener: socket.socket, has_keys: bool, no_api_key: bool) -> None:
    """Raises ValueError if other machines could use the server without a key, and no option allows that."""
    address = listener.getsockname()[0]
    if not (has_keys or no_api_key or ipaddress.ip_address(address.partition("%")[0]).is_loopback):
        raise ValueError(
            f"--host {address} lets other machines use this server without a key: give --api-key or --api-key-file, "
            "or say --no-api-key"
        )


def cors_origins(option: str | None) -> tuple[str, ...]:
    """The sites of --cors-origin. Raises ValueError for what no browser would name as one, and would never match."""
    origins = tuple(part.strip() for part in option.split(",")) if option else ()
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+", origin):
            raise ValueError(f"--cors-origin {origin}: write sites as https://a.example, without a path, or *")
    return origins
