"""The check of vLLM's source: it names what is missing in it, and it imports neither vLLM nor what
the plugin needs."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from smartspec.vllm_plugin import check
from smartspec.vllm_plugin.needs import ADAPTIVE_NEEDS, NEEDS

SCHEDULER = "v1/core/sched/scheduler.py"


def make_tree(folder: Path, version: str | None = "0.32.0") -> Path:
    """A source that has what is needed, and no more."""
    package = folder / "vllm"
    (package / "config").mkdir(parents=True)
    for need in (*NEEDS, *ADAPTIVE_NEEDS):
        path = package / need.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            base = "Inherited" if need.base else "object"
            indent = "    " * bool(need.owner)
            file.write(f"class {need.owner}({base}):\n    known: int\n" if need.owner else "")
            for name, parameters in need.methods.items():
                file.write(f"{indent}def {name}({', '.join((*parameters, 'more=None'))}):\n")
                file.write(
                    "".join(f"        self.{name} = 1\n" for name in need.attributes)
                    + "        pass\n"
                )
            if not need.methods:
                file.write("".join(f"    {name}: int = 1\n" for name in need.attributes))
    if version is not None:
        (package / "_version.py").write_text(
            f"__version__ = version = '{version}'\n__commit_id__ = commit_id = 'g1'\n"
        )
    return package


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("version", ["0.32.0", None])
def test_a_source_that_has_everything(version, tmp_path, capsys):
    package = make_tree(tmp_path, version)
    assert check.main([str(tmp_path)]) == check.main([str(package)]) == 0
    said = capsys.readouterr().out
    assert f"vLLM {version or 'of a clone'} in {package}" in said
    assert "that the plugin needs are there" in said
    assert "untested" not in said and "adaptive verification" not in said
    assert "tested nowhere yet: dspark, PARD" in said


@pytest.mark.parametrize("name", ["reallocate_drafts", "_batch_draft_capacity"])
def test_what_adaptive_verification_lacks_is_said_and_hinders_nothing(name, tmp_path, capsys):
    package = make_tree(tmp_path)
    replace(package / "v1/worker/gpu/spec_decode/adaptive_verification.py", name, "other")
    assert check.main([str(tmp_path)]) == 0 and not check.missing_members(package)
    said = capsys.readouterr().out
    assert (
        f"vLLM's own step times are used: AdaptiveVerificationManager.{name} does not exist" in said
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (SCHEDULER, "def schedule(self", "def plan(self", "Scheduler.schedule does not exist"),
        (
            SCHEDULER,
            "(self, scheduler_output, model_runner_output",
            "(self, outputs",
            "Scheduler.update_from_output takes self, outputs, more; "
            "expected self, scheduler_output, model_runner_output",
        ),
        (
            SCHEDULER,
            "self.dynamic_sd_lookup",
            "self.table",
            "Scheduler.dynamic_sd_lookup does not exist",
        ),
        (SCHEDULER, "class Scheduler(", "class Plan(", f"Scheduler: {SCHEDULER} has no such class"),
        ("v1/request.py", "spec_token_ids", "drafts", "Request.spec_token_ids does not exist"),
    ],
)
def test_what_is_missing_is_named(file, old, new, said, tmp_path, capsys):
    package = make_tree(tmp_path)
    replace(package / file, old, new)
    assert check.main([str(tmp_path)]) == 1
    assert said in capsys.readouterr().out.splitlines()


def test_a_file_that_has_moved_is_named(tmp_path):
    package = make_tree(tmp_path)
    (package / "v1/request.py").rename(package / "request.py")
    assert check.missing_members(package) == ["Request: v1/request.py does not exist"]


def test_a_base_class_may_have_it(tmp_path):
    package = make_tree(tmp_path)
    replace(package / SCHEDULER, "def has_unfinished_requests(", "def other(")
    assert check.missing_members(package) == ["Scheduler.has_unfinished_requests does not exist"]
    interface = "class SchedulerInterface:\n    def has_unfinished_requests(self): ...\n"
    (package / "v1/core/sched/interface.py").write_text(interface)
    assert not check.missing_members(package)


def test_a_version_out_of_range_is_said(tmp_path, capsys):
    make_tree(tmp_path, "0.99.0")
    assert check.main([str(tmp_path)]) == 0
    assert "vLLM 0.99.0 is untested" in capsys.readouterr().out


def test_a_path_without_vllm_is_refused(tmp_path, capsys):
    assert check.main([str(tmp_path)]) == 2
    assert f"{tmp_path} holds no vLLM" in capsys.readouterr().err


def test_it_runs_where_there_is_no_vllm(tmp_path):
    make_tree(tmp_path / "source")
    environment = os.environ | {"PYTHONPATH": str(Path(check.__file__).parents[2])}
    program = (
        "import sys; from smartspec.vllm_plugin.check import main; main(sys.argv[1:]); "
        "print('vllm' in sys.modules)"
    )
    command = [sys.executable, "-S", "-c", program, str(tmp_path / "source")]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert result.stdout.splitlines()[-1] == "False", result.stderr


# How the plugin calls vLLM's objects, and what it adds to them.
RECEIVERS = {
    "Scheduler": ("scheduler", "_scheduler"),
    "Request": ("request", "r"),
    "SchedulerOutput": ("scheduler_output", "output"),
    "ModelRunnerOutput": ("model_output", "model_runner_output"),
    "SamplingParams": ("sampling_params",),
    "VllmConfig": ("vllm_config", "config"),
    "SpeculativeConfig": ("speculative_config",),
    "ParallelConfig": ("parallel_config", "parallel"),
    "ModelConfig": ("model_config",),
    "SchedulerConfig": ("scheduler_config",),
    "CompilationConfig": ("compilation_config",),
    "CacheConfig": ("cache_config",),
}
OURS = {
    "speculation", "toggle", "off_reason", "rest", "files", "begin", "leave_speculation",
    "get_output", "urlopen", "learner",
}  # fmt: skip


def names_touched(path: Path) -> set[tuple[str, str]]:
    """Class and member of each read or call of one of vLLM's objects."""
    owners = {name: owner for owner, names in RECEIVERS.items() for name in names}
    if path.name in ("setup.py", "compatibility.py", "toggle.py"):
        owners |= {"speculation": "SpeculativeConfig", "draft": "ModelConfig"}
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute):
            receiver = node.value
            name = getattr(receiver, "id", None) or getattr(receiver, "attr", None)
            if name in owners and node.attr not in OURS and not node.attr.startswith("__"):
                found.add((owners[name], node.attr))
    return found


def test_every_name_of_vllm_that_is_touched_is_checked():
    known = {(need.owner, name) for need in NEEDS for name in (*need.methods, *need.attributes)}
    folder = Path(check.__file__).parent
    files = [
        path
        for path in folder.rglob("*.py")
        if "serve" not in path.parts and path.name != "check.py"
    ]
    touched = set().union(*map(names_touched, files))
    assert len(touched) > 50
    assert not touched - known, touched - known


def test_names_of_vllm_are_read_plainly():
    """getattr with a default hides that a name is gone. What others may leave out is named here."""
    left_out = {"has_admitted_counts", "adaptive_verification", "reason", "kv_cache_specs"}
    for path in Path(check.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(ast.Name("getattr"), [_, ast.Constant(name), _]):
                    assert name in left_out, path
