"""The scripts in benchmarks/ work from a clone alone: no default, test or page reaches for what lies beside it."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = (
    "abuse",
    "block_types",
    "controller",
    "draft_passes",
    "drafter_tokens",
    "first_token",
    "gguf_files",
    "linear_time",
    "llama_cpp_server",
    "memory",
    "models",
    "openvino_server",
    "page",
    "pass_time",
    "peers",
    "planner",
    "rates",
    "reliability",
    "seeds",
    "simulated_trees",
    "simulator",
    "start_time",
    "step_time",
    "task_speed",
    "trace_tables",
    "tree_widths",
    "vllm_head",
    "vllm_lengths",
    "vllm_overhead",
    "vllm_policies",
    "vllm_rates",
)
BESIDE_THE_CLONE = re.compile(r"""["'/]shared["'/]|["' ]\.\./|["'] */work/""")

sys.path.insert(0, str(ROOT / "benchmarks"))
tasks = importlib.import_module("tasks")


def test_nothing_reads_a_folder_beside_the_clone():
    files = [path for folder in ("benchmarks", "src", "tests") for path in (ROOT / folder).rglob("*.py")]
    files += [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert len(files) > 100
    found = [str(path) for path in files if path != Path(__file__) and BESIDE_THE_CLONE.search(path.read_text("utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    ['Path(__file__).parents[2] / "shared" / "data"', "--prompts ../data/a.jsonl", 'open("/work/a")', "/mnt/shared/a"],
)
def test_a_path_beside_the_clone_is_seen(line):
    assert BESIDE_THE_CLONE.search(line)


@pytest.mark.parametrize("script", SCRIPTS)
def test_default_paths_of_a_script_are_relative(script):
    parameters = inspect.signature(importlib.import_module(script).main).parameters.values()
    paths = [parameter.default for parameter in parameters if isinstance(parameter.default, Path)]
    assert not [path for path in paths if path.is_absolute() or ".." in path.parts]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_shows_its_help_from_anywhere(script, tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / f"{script}.py"), "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert result.returncode == 0 and "Usage:" in result.stdout, result.stderr
    assert not list(tmp_path.iterdir())


def test_every_script_is_tested():
    scripts = (ROOT / "benchmarks").glob("*.py")
    programs = {path.stem for path in scripts if re.search("^if __name__ ==.*main", path.read_text("utf-8"), re.M)}
    programs -= {"vllm_acceptance", "vllm_hooks"}  # run in vLLM's environment
    assert programs == set(SCRIPTS)


def test_shipped_prompts_and_those_of_a_path_by_task(tmp_path):
    shipped = tasks.prompts_by_task(None)
    assert {task: len(prompts) for task, prompts in shipped.items()} == {
        **dict.fromkeys(("chat", "code", "editing", "math", "qa", "rag", "summarization", "translation"), 16),
        "mixed": 128,
    }
    (tmp_path / "a.jsonl").write_text('{"prompt": "one", "task": "mt/writing"}\n{"prompt": "two"}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": "three", "task": "mt/math"}\n')
    given = tasks.prompts_by_task(tmp_path)
    texts = {task: [prompt.text for prompt in prompts] for task, prompts in given.items()}
    assert texts == {"mt": ["one", "three"], "mixed": ["one", "two", "three"]}
    with pytest.raises(ValueError, match="unknown task 'qa': these prompts have mt, mixed"):
        tasks.check_task("qa", given)
