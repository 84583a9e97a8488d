"""The page on extending SmartSpec, as a stranger would follow it: files in a folder of one's own,
then its commands."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extend.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
FILE = "# mine.py\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the stranger works: what the page puts into mine.py lies there."""
    folder = tmp_path_factory.mktemp("strangers")
    (folder / "mine.py").write_text(
        "\n\n".join(block for block in BLOCKS if block.startswith(FILE))
    )
    return folder


def run(folder: Path, *command: str) -> str:
    # -P: without the current directory on the path, as the installed command is.
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-P", *command],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_programs_of_the_page_run(folder):
    shown = run(folder, "-c", "\n".join(block for block in BLOCKS if not block.startswith(FILE)))
    assert int(re.search(r"^accepted: (\d+)$", shown, re.MULTILINE)[1]) > 0
    seconds = dict(re.findall(r"^(\S+): (\S+) s$", shown, re.MULTILINE))
    assert float(seconds["mine:Halving"]) < float(seconds["off"]) > float(seconds["goodput"])
    assert "lengths [4, 4]" in shown


def test_its_command_that_simulates_runs(folder):
    (command,) = re.findall(r"^    smartspec (simulate .*)$", PAGE, re.MULTILINE)
    assert "mine:Halving:4" in run(
        folder, "-m", "smartspec", *command.split(), "--controller-time", "none"
    )


def test_it_imports_only_what_packages_export():
    nodes = [node for block in BLOCKS for node in ast.walk(ast.parse(block))]
    of_ours = {
        (node.module, alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and "smartspec" in node.module
        for alias in node.names
    }
    assert {"smartspec.control", "smartspec.core", "smartspec.drafters", "smartspec.sim"} < {
        m for m, _ in of_ours
    }
    assert not [
        (module, name)
        for module, name in of_ours
        if name not in importlib.import_module(module).__all__
    ]
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    assert not [name for name in plain if name.startswith("smartspec")]
