"""The quick start of docs/vllm.md, as it is pasted: but for the model, the port, and an
installation that is there."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from serving import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text()


def quick_start(model: str, port: int) -> str:
    """The block of the page, with another model and port, and an end."""
    section = PAGE.partition("\n## Quick start\n")[2].partition("\n## ")[0]
    block = re.sub(
        r"^    ",
        "",
        re.search(r"(?:^    .*\n)+", section, re.MULTILINE).group(),
        flags=re.MULTILINE,
    )
    assert re.match(
        r"MODEL=\S+\npip install \. .*\nexport VLLM_CPU_KVCACHE_SPACE=2 .*\nsmartspec vllm serve "
        r"\$MODEL ",
        block,
    )
    lines = block.replace("8000", str(port)).splitlines()
    return "\n".join([f"MODEL={model}", *lines[2:], "kill %1", "wait"])


def test_it_serves_and_counts(model, tmp_path):
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SMARTSPEC_CACHE": str(tmp_path),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    environment.pop("NUMBA_THREADING_LAYER")
    said = tmp_path / "said"
    with said.open("w") as out:
        shell = subprocess.Popen(
            ["bash", "-c", quick_start(model, free_port())],
            stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=tmp_path,
            start_new_session=True,
        )  # fmt: skip
        try:
            shell.wait(900)
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
    text = said.read_text()
    module = "vllm.entrypoints.openai.api_server"  # of the CPU build
    assert f"{sys.executable} -m {module} --model {model}" in text, text
    assert (
        "SmartSpec decides draft lengths: policy goodput, drafts by prompt-lookup, datastore, at "
        "most 5" in text
    )
    answer, _ = json.JSONDecoder().raw_decode(text, text.index('{"id":"chatcmpl'))
    assert answer["choices"][0]["message"]["content"]
    assert float(re.search(r"^smartspec_steps_total\{.*\} (\S+)$", text, re.MULTILINE).group(1)) > 0
