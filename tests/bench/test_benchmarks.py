"""The commands in benchmarks/ work from a clone alone: no default, test or page reaches for what
lies beside it."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from lib import commands
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "matplotlib", "gguf", "vllm"}
PLAIN = ("gpu_cells",)  # with the machine's own Python, which may have no typer
COMMANDS = sorted({path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {*PLAIN})
SERVERS = ("llama_cpp_server", "openvino_server")  # programs that `peers.py` starts
BESIDE_THE_CLONE = re.compile(r"""["'/]shared["'/]|["' ]\.\./|["'] */work/""")


def subcommands(command: str) -> dict[str, typer.models.CommandInfo]:
    """Of a command, by name; one that has none is its own."""
    found = importlib.import_module(command).app.registered_commands
    names = [info.name or info.callback.__name__.replace("_", "-") for info in found]
    return {"" if len(found) == 1 else name: info for name, info in zip(names, found, strict=True)}


def test_nothing_reads_a_folder_beside_the_clone():
    files = [
        path for folder in ("benchmarks", "src", "tests") for path in (ROOT / folder).rglob("*.py")
    ]
    files += [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert len(files) > 100
    found = [
        str(path)
        for path in files
        if path != Path(__file__) and BESIDE_THE_CLONE.search(path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("command", COMMANDS)
def test_subcommands_show_their_help_from_anywhere_and_default_paths_are_relative(
    command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name, info in subcommands(command).items():
        parameters = inspect.signature(info.callback).parameters.values()
        paths = [each.default for each in parameters if isinstance(each.default, Path)]
        assert not [path for path in paths if path.is_absolute() or ".." in path.parts]
        app = importlib.import_module(command).app
        result = CliRunner().invoke(app, [*name.split(), "--help"])
        assert result.exit_code == 0 and f"{name} [OPTIONS]".strip() in result.output, result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", [*COMMANDS, *PLAIN, *SERVERS])
def test_a_script_shows_its_help_from_anywhere_and_imports_nothing_heavy(script, tmp_path):
    path = ROOT / "benchmarks" / ("lib" if script in SERVERS else "") / f"{script}.py"
    command = [sys.executable, "-X", "importtime", str(path), "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert result.returncode == 0 and "usage:" in result.stdout.lower(), result.stderr[-2000:]
    imported = set(re.findall(r"\| +(\w+)$", result.stderr, re.MULTILINE))
    assert ("typer" in imported) is (script not in PLAIN) and not imported & HEAVY
    assert not list(tmp_path.iterdir())


def test_every_program_is_tested():
    programs = {
        path.stem
        for path in (ROOT / "benchmarks").glob("lib/*.py")
        if re.search("^if __name__", path.read_text("utf-8"), re.M)
    }
    # those run in vLLM's environment
    assert programs - {"gpu_worker", "vllm_acceptance", "vllm_hooks"} == set(SERVERS)


def test_the_index_names_every_command():
    page = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    named = re.findall(r"`python benchmarks/(\w+)\.py ?([a-z-]*)", page)
    ours = {command: {*subcommands(command)} for command in COMMANDS}
    ours |= {name: {""} for name in PLAIN}
    found = {(command, name if name in ours.get(command, ()) else "") for command, name in named}
    assert found == {(command, name) for command, names in ours.items() for name in names}


def test_shipped_prompts_and_those_of_a_path_by_task(tmp_path):
    assert len(commands.prompts_by_task(None)["mixed"]) == 128
    (tmp_path / "a.jsonl").write_text(
        '{"prompt": "one", "task": "mt/writing"}\n{"prompt": "two"}\n'
    )
    (tmp_path / "b.jsonl").write_text('{"prompt": "three", "task": "mt/math"}\n')
    given = commands.prompts_by_task(tmp_path)
    texts = {task: [prompt.text for prompt in prompts] for task, prompts in given.items()}
    assert texts == {"mt": ["one", "three"], "mixed": ["one", "two", "three"]}
    with pytest.raises(ValueError, match="unknown task 'qa': these prompts have mt, mixed"):
        commands.check_task("qa", given)
