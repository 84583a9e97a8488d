"""Headless Chromium over its debugging pipe: open a page, run JavaScript in it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

PROGRAM = shutil.which("chromium")


class Page:
    """One tab. commands, answers: file descriptors of the pipe. log: what it wrote to its
    console."""

    def __init__(self, commands: int, answers: int):
        self.log: list[str] = []
        self._commands, self._answers = commands, answers
        self._rest = b""
        self._number = 0
        self._session = None
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.do(f"{domain}.enable")

    def do(self, method: str, **params) -> dict:
        """The answer to one command of the DevTools protocol. RuntimeError if it is refused."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            if answer.get("method") in (
                "Runtime.consoleAPICalled",
                "Runtime.exceptionThrown",
                "Log.entryAdded",
            ):
                self.log.append(json.dumps(answer["params"]))
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def run(self, script: str) -> object:
        """The value of an expression in the page, awaited if it is a promise. RuntimeError if it
        throws."""
        result = self.do(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until the expression is true, or RuntimeError after half a minute."""
        self.run(
            f"new Promise((done, fail) => {{ const ends = Date.now() + 30000; (function look() {{"
            f" if ({condition}) done(); else if (Date.now() > ends) fail({json.dumps('never: ' + condition)});"  # noqa: E501
            " else setTimeout(look, 20); })(); })"
        )

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def look(self, width: int, height: int, dark: bool = False) -> None:
        """The size of the window, and whether its user prefers dark colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.do("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])

    def _read(self) -> dict:
        while b"\0" not in self._rest:
            data = os.read(self._answers, 2**16)
            if not data:
                raise RuntimeError("Chromium has ended")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@contextmanager
def chromium(url: str) -> Iterator[Page]:
    """A page that has loaded url."""
    from_us, commands = os.pipe()
    answers, to_us = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ]
        command = [PROGRAM, *options, f"--user-data-dir={profile}"]
        redirect = (
            f"import os, sys; os.dup2({from_us}, 3); os.dup2({to_us}, 4); os.execv(sys.argv[1], "
            "sys.argv[1:])"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", redirect, *command],
            pass_fds=(from_us, to_us),
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        try:
            page = Page(commands, answers)
            page.do("Page.navigate", url=url)
            yield page
        finally:
            process.terminate()
            process.wait(timeout=30)
            os.close(commands)
            os.close(answers)
