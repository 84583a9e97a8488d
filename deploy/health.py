"""The image's HEALTHCHECK: status 0 if the server that runs as process 1 (or: health.py PID), or
below it, is ready.

Its port may come from an option, a variable or a file, so it is looked for where the process
listens.
"""

import http.client
import ipaddress
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SECONDS = 5
LISTENS = "0A"  # a state in /proc/net/tcp


def listening(process: Path) -> Iterator[tuple[str, int]]:
    """Addresses and ports on which a process listens (proc(5), /proc/net/tcp)."""
    sockets = set()
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(os.readlink(descriptor))
    for table in ("tcp", "tcp6"):
        for line in (process / "net" / table).read_text().splitlines()[1:]:
            _, place, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in sockets:
                address, _, port = place.partition(":")
                yield _address(bytes.fromhex(address)), int(port, 16)


def _address(words: bytes) -> str:
    """Of words of 32 bits in the machine's order; the loopback one where it is any."""
    parts = [words[at : at + 4] for at in range(0, len(words), 4)]
    found = ipaddress.ip_address(
        b"".join(part[::-1] if sys.byteorder == "little" else part for part in parts)
    )
    return str(found) if not found.is_unspecified else "127.0.0.1" if found.version == 4 else "::1"


def is_ready(address: str, port: int) -> bool:
    connection = http.client.HTTPConnection(address, port, timeout=SECONDS)
    connection.request("GET", "/health")
    return connection.getresponse().status == 200


def main() -> None:
    first = Path("/proc", sys.argv[1] if len(sys.argv) > 1 else "1")
    # as of docker run --init
    below = (first / "task" / first.name / "children").read_text().split()
    processes = [first, *(Path("/proc", number) for number in below)]
    places = [place for process in processes if process.exists() for place in listening(process)]
    sys.exit(not (places and is_ready(*places[0])))


if __name__ == "__main__":
    main()
