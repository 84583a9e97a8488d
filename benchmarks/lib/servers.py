"""Starting and stopping the servers that benchmarks compare."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from smartspec.bench.client import Target
from smartspec.bench.probe import find_model
from smartspec.engine.models.default_model import default_model_file

START_SECONDS = 300
SETTLE_SECONDS = 4  # our own uses the rest to move what it holds to huge pages
# keeps prefix caches from helping
SYSTEM_MESSAGE = "You are a helpful AI assistant. (Session {session})"


@dataclass(frozen=True)
class ServerCommand:
    """How to start a server, with `{port}` and `{slots}` (requests at once) to be filled in, and
    what to add to its environment."""

    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def server_command(name: str, model_path: str | None, vllm_python: str | None) -> ServerCommand:
    """`vllm`, `llama.cpp`, `openvino`, or the name of a policy of our own server, with the drafters
    it starts with or, as in `goodput+prompt-lookup+recycling`, with others.

    Raises ValueError when vLLM cannot be started.
    """
    if name in ("llama.cpp", "openvino"):
        file = (
            model_path if model_path and model_path.endswith(".gguf") else str(default_model_file())
        )
        script = str(Path(__file__).with_name(f"{name.replace('.', '_')}_server.py"))
        slots = ["{slots}"] if name == "llama.cpp" else []
        return ServerCommand([sys.executable, script, file, "{port}", *slots])
    if name != "vllm":
        policy, *drafters = name.split("+")
        options = ["--policy", policy, *(["--drafter", ",".join(drafters)] if drafters else [])]
        options += ["--model", model_path] if model_path else []
        return ServerCommand(
            [sys.executable, "-m", "smartspec", "serve", "--port", "{port}", *options]
        )
    if not (vllm_python and model_path):
        raise ValueError("the server vllm needs --vllm-python and --model-path; see --help")
    api_server = [
        vllm_python,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
    ]
    model = ["--model", model_path, "--served-model-name", "m", "--max-model-len", "4096"]
    # Both cores of a small machine: left alone, vLLM keeps one for itself.
    cores = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", f"0-{(os.cpu_count() or 1) - 1}")
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_NO_USAGE_STATS": "1",
    }
    return ServerCommand(
        [*api_server, *model, "--dtype", "float32", "--enforce-eager"], environment
    )


@contextmanager
def running(
    command: ServerCommand, log_path: Path, slots: int = 1, poll_seconds: float = 0.5
) -> Iterator[Target]:
    """A server for so many requests at once while the block runs, its output in log_path.

    Raises ValueError if it does not become healthy.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            [argument.format(port=port, slots=slots) for argument in command.arguments],
            env=os.environ | command.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a process group, so that its children end with it
        )
    try:
        base_url = f"http://127.0.0.1:{port}"
        wait_until_healthy(process, base_url, log_path, poll_seconds)
        yield Target(base_url, find_model(base_url), ignore_eos=True)
    finally:
        stop(process)


def wait_until_healthy(
    process: subprocess.Popen, base_url: str, log_path: Path, poll_seconds: float
) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{base_url}/health", timeout=5.0).status_code == 200:
                return
        except httpx.HTTPError:
            pass  # not listening yet
        time.sleep(poll_seconds)
    state = (
        "is not healthy yet"
        if process.poll() is None
        else f"ended with status {process.returncode}"
    )
    tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-15:])
    raise ValueError(f"the server {state}: {process.args}\n\n{tail}")


def stop(process: subprocess.Popen) -> None:
    """Tell the whole process group to end, kill it after 20 s."""
    for request in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, request)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=20)
            return
        except subprocess.TimeoutExpired:
            continue


def seconds_to_first_token(base_url: str, prompt: str | list[int]) -> float:
    """Of a greedy streamed request for one token."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
    began = time.perf_counter()
    with httpx.stream("POST", f"{base_url}/v1/completions", json=body, timeout=120) as answer:
        answer.raise_for_status()
        next(answer.iter_lines())
        return time.perf_counter() - began


def memory_of(base_url: str) -> tuple[float, float]:
    """Resident and peak memory, in MB, of the process that listens on the port."""
    port = int(base_url.rsplit(":", 1)[1])
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            command = (status.parent / "cmdline").read_bytes()
            if f"--port\0{port}\0".encode() in command + b"\0":
                fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
                return tuple(
                    int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM")
                )
        except OSError:
            continue  # ended meanwhile
    raise ValueError(f"no server process for {base_url}")
