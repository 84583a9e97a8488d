"""A built wheel in a fresh environment, beside a vLLM: numpy alone is needed, from any folder."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent / "vllm_plugin"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Its Python and smartspec; a source that looks like vLLM 0.32 is beside it."""
    if find_spec("setuptools") is None:
        pytest.skip("setuptools builds the wheel: pip install 'setuptools>=77'")
    folder = tmp_path_factory.mktemp("wheel")
    clone = folder / "clone"
    shutil.copytree(
        ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone / name)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        ".",
    ]
    subprocess.run(build, check=True, cwd=clone, timeout=300)
    (wheel,) = folder.glob("smartspec-*.whl")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")],
        check=True,
        timeout=120,
    )
    (packages,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "venv" / "bin" / "python"),
        "install",
        "-q",
    ]
    # where pip may find a smartspec
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [*install, "--no-deps", "--no-index", str(wheel)], check=True, env=own, timeout=120
    )
    for part in Path(numpy.__file__).parents[1].glob("numpy*"):
        (packages / part.name).symlink_to(part)
    from test_check import make_tree

    package = make_tree(packages)
    (package / "__init__.py").write_text("raise ImportError('it is not imported')\n")
    return folder / "venv" / "bin"


def run(environment: Path, tmp_path: Path, *command: str) -> subprocess.CompletedProcess:
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "SMARTSPEC_CACHE": str(tmp_path / "cache"),
    }
    command = (str(environment / command[0]), *command[1:])
    return subprocess.run(
        command, capture_output=True, text=True, env=variables, cwd=tmp_path, timeout=120
    )


@pytest.mark.parametrize(
    "prefix", [("smartspec", "vllm", "serve"), ("python", "-m", "smartspec.vllm_plugin.serve")]
)
def test_serve(prefix, environment, tmp_path):
    result = run(environment, tmp_path, *prefix, "MODEL", "--act", "--print")
    assert result.returncode == 0, result.stderr
    assert "--scheduler-cls smartspec.vllm_plugin.Scheduler" in result.stdout
    assert f"{environment}/python -m " in result.stdout and '"act": true' in result.stdout


def test_off_and_on(environment, tmp_path):
    file = tmp_path / "cache" / "vllm" / "off"
    module = ("python", "-m", "smartspec.vllm_plugin.switch")
    for *command, state, is_there in (
        ("smartspec", "vllm", "off", True),
        (*module, "on", False),
        (*module, "off", True),
    ):
        result = run(environment, tmp_path, *command, state)
        assert result.returncode == 0 and f"{tmp_path}/cache" in result.stdout, result.stderr
        assert file.exists() == is_there


def test_check_and_ab(environment, tmp_path):
    result = run(environment, tmp_path, "smartspec", "vllm", "check")
    assert result.returncode == 0 and "that the plugin needs are there" in result.stdout, (
        result.stderr
    )
    result = run(environment, tmp_path, "smartspec", "vllm", "ab", "http://127.0.0.1:9")
    assert (
        result.returncode == 2
        and "does not answer" in result.stderr
        and result.stderr.count("\n") == 1
    )


@pytest.mark.parametrize(("words", "status"), [((), 2), (("--help",), 0), (("of",), 2)])
def test_the_commands_are_listed(words, status, environment, tmp_path):
    result = run(environment, tmp_path, "smartspec", "vllm", *words)
    assert (result.returncode, result.stderr) == (status, "")
    assert {"serve", "observed", "ab", "off", "on", "check"} <= {
        line.split()[0] for line in result.stdout.splitlines()
    }


def test_numpy_is_all_there_is(environment, tmp_path):
    program = (
        "from importlib.metadata import distributions; print(*sorted({d.name for d in "
        "distributions()}))"
    )
    assert run(environment, tmp_path, "python", "-c", program).stdout.split() == [
        "numpy",
        "smartspec",
    ]


def test_an_environment_is_made_anew_when_a_package_in_it_changes():
    rules = [
        rule for rule in (ROOT / "Makefile").read_text().split("\n\n") if "-e ./models" in rule
    ]
    assert len(rules) == 2
    for rule in rules:
        target, _, needs = rule.partition("\n")[0].partition(": ")
        assert needs.split() == ["pyproject.toml", "models/pyproject.toml"], target
