"""The image, built and run as a cluster would: as any user of group 0, on a port that a variable
names."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS_TO_BE_HEALTHY = 600


def builder() -> str | None:
    """docker or podman, where it works."""
    for program in ("docker", "podman"):
        try:
            if not subprocess.run([program, "info"], capture_output=True, timeout=60).returncode:
                return program
        except OSError:
            continue
    return None


PROGRAM = builder()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no docker or podman that works")


def run(*arguments: str) -> str:
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[..., str]]:
    """Starts a container of the image, whose name it returns."""
    run("build", "-f", str(ROOT / "deploy" / "Dockerfile"), "-t", "smartspec-test", str(ROOT))
    names: list[str] = []

    def start(*options: str) -> str:
        names.append(
            run("run", "-d", "--health-interval", "2s", *options, "smartspec-test", "--no-api-key")
        )
        return names[-1]

    yield start
    for name in names:
        run("rm", "-f", "-v", name)


@pytest.mark.parametrize("user", [[], ["--user", "123456:0"]])
@pytest.mark.parametrize("port", ["9001", "tcp://10.96.44.7:8000"])
def test_it_becomes_healthy(started, user, port):
    name = started("-e", f"SMARTSPEC_PORT={port}", *user)
    deadline = time.monotonic() + SECONDS_TO_BE_HEALTHY
    while (
        state := run("inspect", "-f", "{{.State.Status}} {{.State.Health.Status}}", name)
    ) != "running healthy":
        assert state.startswith("running") and time.monotonic() < deadline, run("logs", name)
