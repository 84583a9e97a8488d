"""The image's lines, and the check of its health. `make test-clients` builds and runs it where
there is a builder."""

import os
import re
import runpy
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEALTH = ROOT / "deploy" / "health.py"
LINES = (ROOT / "deploy" / "Dockerfile").read_text()


def test_its_user_is_a_number_of_group_0_which_may_write_the_cache():
    """kubelet compares numbers alone for runAsNonRoot; OpenShift runs any user of group 0."""
    (user,) = re.findall(r"^USER (.*)$", LINES, re.MULTILINE)
    assert re.fullmatch(r"[1-9]\d*:0", user)
    owner, mode, cache = re.search(r"chown (\S+) (?:\S+) && chmod (\d+) (\S+)", LINES).groups()
    assert (
        owner == user
        and int(mode[-2]) & 2
        and f"SMARTSPEC_CACHE={cache} " in LINES
        and f"VOLUME {cache}\n" in LINES
    )


def test_what_it_copies_is_there_and_not_left_out():
    copied = [
        name
        for line in re.findall(r"^COPY (.*)$", LINES, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    kept = [
        line[1:]
        for line in Path(f"{ROOT}/deploy/Dockerfile.dockerignore").read_text().split()
        if line[0] == "!"
    ]
    assert all(
        (ROOT / name).exists() and any(fnmatch(name, each) for each in kept) for name in copied
    )
    assert "/app/" + HEALTH.name in LINES and str(HEALTH.relative_to(ROOT)) in copied


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_health_is_asked_where_the_server_listens(server):
    def code(pid: int) -> int:
        return subprocess.run([sys.executable, str(HEALTH), str(pid)], timeout=60).returncode

    assert code(os.getpid()) == 0
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as idle:
        assert code(idle.pid) == 1
        idle.stdin.close()
    places = runpy.run_path(str(HEALTH))["listening"](Path("/proc/self"))
    assert server.url in [f"http://{address}:{port}" for address, port in places]
