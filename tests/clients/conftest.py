"""A served real model, and the clients' own environment: `make test-clients`."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CLIENTS = Path(os.environ.get("SMARTSPEC_CLIENTS", "")).absolute()
SCRIPTS = Path(__file__).parent
SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(SCRIPTS):
            item.add_marker("clients")


@contextmanager
def served(max_model_len: int) -> Iterator[str]:
    """Where the default model is served meanwhile."""
    command = [
        sys.executable,
        "-m",
        "smartspec",
        "serve",
        "--port",
        "0",
        "--max-model-len",
        str(max_model_len),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            lines = []
            for line in server.stdout:
                lines.append(line)
                if line.startswith("serving "):
                    yield line.split(" at ")[1].split()[0]
                    return
            pytest.fail(f"the server did not start: {''.join(lines)}")
        finally:
            server.terminate()
            server.stdout.close()


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with served(2048) as address:
        yield address


@pytest.fixture
def short_url() -> Iterator[str]:
    """A server whose answers are short, whatever the request."""
    with served(64) as address:
        yield address


@pytest.fixture(scope="session")
def run(url, tmp_path_factory) -> Callable[..., str]:
    """Runs a program of the clients' environment against the server, or base; what it prints. It
    fails the test if the program fails."""
    home = tmp_path_factory.mktemp("home")
    offline = {
        "HF_HUB_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HOME": str(home),
        "LLM_USER_PATH": str(home),
    }

    def run_program(program: str, *arguments: str, base: str = url) -> str:
        keys = {
            "OPENAI_API_KEY": "unused",
            "OPENAI_BASE_URL": f"{base}/v1",
            "OPENAI_API_BASE": f"{base}/v1",
        }
        environment = {"PATH": os.environ["PATH"], "SMARTSPEC_URL": base} | keys | offline
        command = [str(CLIENTS / program), *arguments]  # an absolute path stays what it is
        done = subprocess.run(
            command, env=environment, cwd=home, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run_program
