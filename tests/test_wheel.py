"""A built wheel in a fresh environment, beside a vLLM: numpy alone is needed, from any folder."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from venv import EnvBuilder

import numpy
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent / "vllm_plugin"))


def pip(*words: str, **options) -> None:
    subprocess.run([sys.executable, "-m", "pip", *words, "-q"], check=True, timeout=300, **options)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Its Python and smartspec; a source that looks like vLLM 0.32 is beside it."""
    if find_spec("setuptools") is None:
        pytest.skip("setuptools builds the wheel: pip install 'setuptools>=77'")
    folder = tmp_path_factory.mktemp("wheel")
    clone, venv = folder / "clone", folder / "venv"
    shutil.copytree(
        ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), ".", cwd=clone)
    (wheel,) = folder.glob("smartspec-*.whl")
    EnvBuilder(symlinks=True).create(venv)
    (packages,) = (venv / "lib").glob("python3*/site-packages")
    # where pip may find a smartspec
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = str(venv / "bin" / "python")
    pip("--python", python, "install", "--no-deps", "--no-index", str(wheel), env=own)
    for part in Path(numpy.__file__).parents[1].glob("numpy*"):
        (packages / part.name).symlink_to(part)
    from test_check import make_tree

    package = make_tree(packages)
    (package / "__init__.py").write_text("raise ImportError('it is not imported')\n")
    return venv / "bin"


@pytest.fixture
def run(environment, tmp_path):
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "SMARTSPEC_CACHE": str(tmp_path / "cache"),
    }
    options = {"capture_output": True, "text": True, "timeout": 120}

    def started(program: str, *words: str) -> subprocess.CompletedProcess:
        command = [str(environment / program), *words]
        return subprocess.run(command, env=variables, cwd=tmp_path, **options)

    return started


@pytest.mark.parametrize(
    "prefix", [("smartspec", "vllm", "serve"), ("python", "-m", "smartspec.vllm_plugin.serve")]
)
def test_serve(prefix, environment, run):
    result = run(*prefix, "MODEL", "--act", "--print")
    assert result.returncode == 0, result.stderr
    assert "--scheduler-cls smartspec.vllm_plugin.Scheduler" in result.stdout
    assert f"{environment}/python -m " in result.stdout and '"act": true' in result.stdout


def test_off_and_on(run, tmp_path):
    file = tmp_path / "cache" / "vllm" / "off"
    module = ("python", "-m", "smartspec.vllm_plugin.switch")
    for *command, state, is_there in (
        ("smartspec", "vllm", "off", True),
        (*module, "on", False),
        (*module, "off", True),
    ):
        result = run(*command, state)
        assert result.returncode == 0 and f"{tmp_path}/cache" in result.stdout, result.stderr
        assert file.exists() == is_there


def test_check_and_ab(run):
    result = run("smartspec", "vllm", "check")
    assert result.returncode == 0 and "that the plugin needs are there" in result.stdout, (
        result.stderr
    )
    result = run("smartspec", "vllm", "ab", "http://127.0.0.1:9")
    assert (
        result.returncode == 2
        and "does not answer" in result.stderr
        and result.stderr.count("\n") == 1
    )


@pytest.mark.parametrize(("words", "status"), [((), 2), (("--help",), 0), (("of",), 2)])
def test_the_commands_are_listed(words, status, run):
    result = run("smartspec", "vllm", *words)
    assert (result.returncode, result.stderr) == (status, "")
    assert {"serve", "observed", "ab", "off", "on", "check"} <= {
        line.split()[0] for line in result.stdout.splitlines()
    }


def test_numpy_is_all_there_is(run):
    program = (
        "from importlib.metadata import distributions; print(*sorted({d.name for d in "
        "distributions()}))"
    )
    assert run("python", "-c", program).stdout.split() == [
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
