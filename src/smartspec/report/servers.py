"""Our own server, started for a report: as a process of its own, reached over HTTP alone."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx

START_SECONDS = 600
POLL_SECONDS = 0.3
STOP_SECONDS = 20


def serve_command(
    policy: str, drafters: str | None, model: str | None, options: tuple[str, ...] = ()
) -> list[str]:
    """The arguments of `smartspec serve`, without a port. drafters: None for those it starts
    with."""
    chosen = ["--policy", policy]
    chosen += [] if drafters is None else ["--drafter", drafters]
    chosen += [] if model is None else ["--model", model]
    return [sys.executable, "-m", "smartspec", "serve", *chosen, *options]


class StartedServer:
    """A server of one variant. arguments: of serve_command. log_path: where its output goes."""

    def __init__(self, name: str, arguments: list[str], log_path: Path):
        self.name, self.log_path = name, log_path
        self._arguments = arguments
        self._process: subprocess.Popen | None = None
        self._has_failed = False
        self.base_url = ""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it answers. Raises ValueError if it does not."""
        port = _free_port()
        self.base_url = f"http://127.0.0.1:{port}"
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                [*self._arguments, "--port", str(port)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is ours; and its children end with it
            )
        deadline = time.monotonic() + START_SECONDS
        while self.is_running and time.monotonic() < deadline:
            if _is_healthy(self.base_url):
                return
            time.sleep(POLL_SECONDS)
        reason = (
            f"did not answer in time (see {self.log_path})"
            if self.is_running
            else self.why_it_ended()
        )
        self._has_failed = True
        self.stop()
        raise ValueError(f"the server {self.name} {reason}")

    def why_it_ended(self) -> str:
        """The reason of its end, with its status and the last line of its output."""
        self._has_failed = True
        lines = [
            line for line in self.log_path.read_text(errors="replace").splitlines() if line.strip()
        ]
        status = self._process.returncode if self._process else None
        return (
            f"ended with status {status}: {lines[-1] if lines else 'it said nothing'} (all of it: "
            f"{self.log_path})"
        )

    def stop(self) -> None:
        """Tell its process group to end, and kill it if it does not. Its output is kept where it
        has failed."""
        if self._process is None:
            return
        for request in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, request)
                self._process.wait(timeout=STOP_SECONDS)
                break
        if not self._has_failed:
            self.log_path.unlink(missing_ok=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _is_healthy(base_url: str) -> bool:
    try:
        return httpx.get(f"{base_url}/health", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False  # not listening yet
