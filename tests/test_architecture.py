"""The import table of the architecture: which layer may import which, and which libraries each may
use."""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE, LAB = ROOT / "src" / "smartspec", ROOT / "lab"

LAYERS = {
    "control": set(),
    "core": {"control"},
    "drafters": {"control", "core"},
    "workload": set(),
    "engine": {"control", "core", "drafters"},
    "server": {"control", "core", "engine"},
    "texts": {"drafters", "engine"},
    "observation": {"control"},
    "sim": {"control", "core", "drafters", "workload", "observation"},
    "bench": {"workload"},
    "report": {"control", "core", "drafters", "workload", "sim", "bench"},
    "vllm_plugin": {"control", "core", "drafters", "observation"},
    "sglang_plugin": {"control", "core", "vllm_plugin"},
}
LIBRARIES = {
    "control": {"numpy"},
    "core": {"numpy"},
    "drafters": {"numpy"},
    "workload": {"numpy"},
    "observation": {"numpy"},
    "sim": {"numpy"},
    "engine": {
        "numpy", "torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "gguf",
        "accelerate", "psutil",
    },
    "server": {
        "numpy", "fastapi", "starlette", "pydantic", "pydantic_core", "uvicorn",
        "prometheus_client", "jinja2", "llguidance", "opentelemetry", "httptools",
    },
    "texts": {"numpy", "transformers"},
    "bench": {"numpy", "httpx", "matplotlib", "rich"},
    "report": {"numpy", "httpx", "matplotlib", "rich", "jinja2"},
    "vllm_plugin": {"numpy", "vllm", "prometheus_client", "yaml"},
    "sglang_plugin": {"numpy", "sglang"},
    "cli": {"numpy", "typer", "rich"},
}  # fmt: skip
# Within a layer: what a folder (or file) may import from its own level is what stands before it.
# The rest is on top.
ORDER = {
    "control": (
        "records",
        "checks",
        "log",
        "acceptance",
        "expected_tree",
        "estimates",
        "latency",
        "planning",
        "policy",
        "guard",
        "goodput",
        "uniform",
        "fixed",
        "policy_names",
        "what_if",
        "controller",
        "safe_controller",
        "__init__",
    ),
    "vllm_plugin": (
        "settings",
        "tested_versions",
        "needs",
        "compatibility",
        "check",
        "serve",
        "file_thread",
        "handover",
        "switch",
        "metrics_page",
        "proposer",
        "setup",
        "step",
        "costs",
        "speculation",
        "executor",
        "ab",
        "observed",
        "stat_logger",
        "scheduler",
        "__init__",
    ),
    "vllm_plugin/ab": (
        "__init__",
        "windows",
        "comparison",
        "results",
        "metrics",
        "toggle",
        "__main__",
    ),
    "vllm_plugin/observed": ("__init__", "collector", "observer", "__main__"),
    "vllm_plugin/step": (
        "__init__",
        "batch",
        "callers",
        "decision",
        "adaptive",
        "under_way",
        "metrics",
    ),
    "vllm_plugin/costs": ("__init__", "steps", "sources"),
    "vllm_plugin/speculation": (
        "__init__",
        "drafts",
        "learner",
        "decider",
        "speculation",
        "builder",
    ),
    "vllm_plugin/serve": ("__init__", "routes", "command", "__main__"),
    "observation": (
        "records",
        "files",
        "acceptance",
        "step_times",
        "loads",
        "forecast",
        "length_tables",
        "card",
        "report",
        "__init__",
    ),
    "sglang_plugin": ("timeline", "chooser", "policy", "ranks", "plugin", "__init__"),
    "engine": (
        "__init__",
        "cache_folder",
        "kernels",
        "attention",
        "models",
        "sampling",
        "drafting",
        "text",
        "runtime",
    ),
    "server": ("__init__", "http", "live", "structured", "openai", "anthropic", "openapi", "app"),
    "sim": (
        "settings",
        "perfect_estimates",
        "world",
        "perfect_outcomes",
        "simulated_drafter",
        "replay",
        "executor",
        "virtual_engine",
        "static_load",
        "scenario",
        "simulation",
        "controller_time",
        "length_table",
        "card_settings",
        "__init__",
    ),
}
# Tokens of Python without comments and docstrings, see code_tokens. They only go down; who raises
# one says why in CHANGELOG.md.
MAX_TOKENS = {
    "src": 280_700,
    "src/smartspec/control": 32_000,
    "src/smartspec/control/goodput": 4_850,
    "src/smartspec/vllm_plugin": 28_950,
    "src/smartspec/cli": 13_600,
    "src/smartspec/server": 40_100,
    "tests": 375_700,
}
MAX_FUNCTION_TOKENS, MAX_ARGUMENTS = 610, 8
MAX_WHEEL_BYTES = 2_500_000  # unpacked
TORCH_FREE = ("control", "core", "drafters", "workload", "sim")


@cache
def trees() -> dict[Path, ast.Module]:
    """The files of the package, by their paths in it."""
    paths = sorted(SOURCE.rglob("*.py"))
    return {path.relative_to(SOURCE): ast.parse(path.read_text("utf-8")) for path in paths}


def imports(tree: ast.Module) -> list[tuple[ast.AST, str]]:
    """Statements and the dotted names they import; `from smartspec import x` counts as
    smartspec.x."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"line {node.lineno}: relative imports hide the layer; write the full name"
            )
            if node.module == "smartspec":
                found += [(node, f"smartspec.{alias.name}") for alias in node.names]
            else:
                found.append((node, node.module))
    return found


def is_deferred(node: ast.AST) -> bool:
    """Whether what is inside is not run when the module is imported: functions and `if
    TYPE_CHECKING`."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def violations(path: Path, tree: ast.Module) -> list[str]:
    """What the file at `path` (relative to the package) imports against the table."""
    layer = "cli" if path == Path("__main__.py") else path.parts[0] if len(path.parts) > 1 else None
    deferred = {inner for node in ast.walk(tree) if is_deferred(node) for inner in ast.walk(node)}
    found = []
    for node, module in imports(tree):
        top, _, rest = module.partition(".")
        if top == "smartspec":
            target = rest.partition(".")[0]
            if layer == "cli":
                allowed = target == "cli" or node in deferred
            elif layer is not None:
                allowed = target == layer or target in LAYERS.get(layer, set())
            elif path.name == "__init__.py":  # its names are imported when they are used
                allowed = node in deferred
            else:
                allowed = target in {"core", "engine", "server"}
        else:
            allowed = top in sys.stdlib_module_names or top in LIBRARIES.get(layer, set())
            allowed = allowed or (layer == "cli" and node in deferred)
        if not allowed:
            found.append(f"{path}:{node.lineno} imports {module}")
    return found


def test_every_layer_is_in_the_table():
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders == set(LAYERS) | {"cli"} == set(LIBRARIES)


def room(path: Path, folder: str) -> str:
    """The folder inside a folder, or the file at its top, that a path relative to the package lies
    in."""
    return path.relative_to(folder).parts[0].removesuffix(".py")


def folders_of(path: Path) -> list[str]:
    """The folders in ORDER that a path relative to the package lies in."""
    return [folder for folder in ORDER if path.is_relative_to(folder)]


def upward_imports(path: Path, tree: ast.Module) -> list[str]:
    """What the file at `path` (relative to the package) imports from rooms of its folders that
    stand above its own."""
    found = []
    for folder in folders_of(path):
        parts = ("smartspec", *folder.split("/"))
        allowed = ORDER[folder][: ORDER[folder].index(room(path, folder)) + 1]
        for node, module in imports(tree):
            *outside, inside = (*module.split("."), "__init__")[: len(parts) + 1]
            if tuple(outside) == parts and inside not in (*allowed, "__init__"):
                found.append(f"{path}:{node.lineno} imports {inside}")
    return found


def test_rooms_of_a_layer_import_downwards():
    assert {(folder, room(path, folder)) for path in trees() for folder in folders_of(path)} == {
        (folder, name) for folder, rooms in ORDER.items() for name in rooms
    }
    found = [line for path, tree in trees().items() for line in upward_imports(path, tree)]
    assert not found, "\n".join(found)
    assert upward_imports(
        Path("vllm_plugin/serve/routes.py"), ast.parse("import smartspec.vllm_plugin.serve.command")
    )


NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def code_tokens(text: str) -> list[int]:
    """The lines of the tokens of a file, without comments, docstrings and what stands for lines and
    indentation."""
    scopes = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, scopes) and ast.get_docstring(node, False)
    ]
    docstrings = {(node.body[0].lineno, node.body[0].col_offset) for node in nodes}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [
        token.start[0]
        for token in tokens
        if token.type not in NO_CODE and token.start not in docstrings
    ]


@pytest.mark.parametrize("folder", MAX_TOKENS)
def test_there_is_no_more_code_than_there_was(folder):
    paths = (ROOT / folder).rglob("*.py")
    assert sum(len(code_tokens(path.read_text("utf-8"))) for path in paths) <= MAX_TOKENS[folder]


def test_tokens_of_code_are_counted():
    text = (
        '"""Of the file."""\nA = "text"  # a comment\n\n\ndef f(x):\n    """What it does."""\n    '
        "return x\n"
    )
    assert code_tokens(text) == [2] * 3 + [5] * 6 + [7] * 2


def sizes(path: Path, text: str) -> list[str]:
    """Functions of the file that are too long, or take too many arguments; self is none."""
    found, lines = [], code_tokens(text)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        num_arguments = len(names) - (names[:1] in (["self"], ["cls"]))
        num_tokens = sum(node.lineno <= line <= node.end_lineno for line in lines)
        if num_tokens > MAX_FUNCTION_TOKENS or num_arguments > MAX_ARGUMENTS:
            found.append(
                f"{path}:{node.lineno} {node.name}: {num_tokens} tokens, {num_arguments} arguments"
            )
    return found


def test_functions_are_short_and_take_few_arguments():
    found = [
        line
        for folder in (SOURCE, LAB)
        for path in folder.rglob("*.py")
        for line in sizes(path.relative_to(ROOT), path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


def lab_imports(tree: ast.Module) -> list[str]:
    return [module for _, module in imports(tree) if module.split(".")[0] == "lab"]


def test_the_package_imports_nothing_of_the_lab():
    """Where lab/ is found, its tables are looked up by name (core/lab_tables.py)."""
    assert not {path: modules for path, tree in trees().items() if (modules := lab_imports(tree))}
    assert lab_imports(ast.parse("def f():\n    from lab.policies import POLICIES")) == [
        "lab.policies"
    ]


def test_the_wheel_is_small():
    """Heads and datastores are in models/, what no default reaches in lab/."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    data = {
        path for pattern in options["package-data"]["smartspec"] for path in SOURCE.glob(pattern)
    }
    assert options["packages"]["find"] == {"where": ["src"]}
    assert sum(path.stat().st_size for path in {*SOURCE.rglob("*.py"), *data}) < MAX_WHEEL_BYTES


def test_a_function_of_many_tokens_or_arguments_is_seen():
    lines = (MAX_FUNCTION_TOKENS - 5) // 3
    assert sizes(Path("x.py"), "def f():\n" + "    a = 1\n" * (lines + 1))
    assert not sizes(Path("x.py"), "def f():\n" + "    a = 1  # one\n" * lines)
    names = ", ".join("abcdefgh")
    assert sizes(Path("x.py"), f"def f({names}, *, i): pass")
    assert not sizes(Path("x.py"), f"class C:\n    def f(self, {names}): pass")


def test_kernels_include_each_other_in_no_circle():
    """name.c and name.h are one unit."""
    includes: dict[str, set[str]] = {}
    for path in (SOURCE / "engine/kernels/cpu").glob("*.[ch]"):
        found = re.findall(r'^#include "(\w+)\.h"', path.read_text("utf-8"), re.MULTILINE)
        includes.setdefault(path.stem, set()).update({*found} - {path.stem})
    order = [*TopologicalSorter(includes).static_order()]  # raises CycleError
    assert order.index("decoder_layer") < order.index("head_pass") < order.index("passes")


@pytest.mark.parametrize("plugin", ["vllm_plugin", "sglang_plugin"])
def test_a_plugin_needs_no_more_of_the_controller_than_it_exports(plugin):
    modules = {
        module
        for path, tree in trees().items()
        if path.is_relative_to(plugin)
        for _, module in imports(tree)
    }
    assert {m for m in modules if m.startswith("smartspec.control")} == {"smartspec.control"}


def test_an_upward_import_is_seen():
    line = "from smartspec.control.goodput.policy import Goodput"
    assert upward_imports(Path("control/acceptance/x.py"), ast.parse(line))
    assert not upward_imports(Path("control/controller.py"), ast.parse(line))


def test_imports_follow_the_table():
    assert len(trees()) > len(LAYERS)
    found = [line for path, tree in trees().items() for line in violations(path, tree)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("control/x.py", "from smartspec.core.request import Request"),
        ("control/x.py", "import torch"),
        ("core/x.py", "def f():\n    import torch"),
        ("bench/x.py", "from smartspec import server"),
        ("server/x.py", "import torch.nn"),
        ("cli/x.py", "from smartspec.engine.models.load import load_model"),
        ("__init__.py", "import numpy"),
        ("core/x.py", "if TYPE_CHECKING:\n    import torch"),
        ("vllm_plugin/x.py", "from smartspec.engine.models.load import load_model"),
    ],
)
def test_a_forbidden_import_is_seen(path: str, line: str):
    assert violations(Path(path), ast.parse(line))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("core/x.py", "import os.path\nfrom smartspec.control.records import BatchView"),
        ("engine/x.py", "import torch\nfrom smartspec.drafters import prompt_lookup"),
        (
            "cli/x.py",
            "import typer\ndef f():\n    from smartspec.engine.models.load import load_model\n    "
            "import uvicorn",
        ),
    ],
)
def test_an_allowed_import_passes(path: str, line: str):
    assert not violations(Path(path), ast.parse(line))


def test_torch_free_layers_import_without_torch():
    modules = [
        ".".join(("smartspec", *path.with_suffix("").parts)).removesuffix(".__init__")
        for path in trees()
        if path.parts[0] in TORCH_FREE
    ]
    program = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    command, variables = [sys.executable, "-c", program], {"PYTHONPATH": str(SOURCE.parent)}
    result = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


CHOSEN_VALUES = 48  # no more than there are
# Not chosen: bounds of memory, of rounding and of what is faster, versions of formats, what people
# are shown.
NOT_CHOSEN = {
    "MAX_TREE_NODES", "NUM_CLASSES", "MAX_RANK", "MAX_TRACKED_REQUESTS", "NUM_ERRORS", "UNLIMITED",
    "BEYOND", "FORMAT", "ROUNDING", "BOUND_ERROR", "LEAST_SURVIVAL", "_BOUNDS", "MIDPOINTS",
    "NUM_BUCKETS", "NUM_DECISIONS", "MAX_KINDS", "MAX_SLOTS",
}  # fmt: skip
NO_VALUES = {"log", "policy_names.py", "checks.py"}


def chosen_values(tree: ast.Module) -> list[str]:
    """Numbers that people chose: fields of settings, constants of a module, literals in functions.
    0, 1, 2, a half and what only keeps from dividing by 0 are none."""

    def numbers(node: ast.AST) -> list[float]:
        constants = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
        return [n for n in constants if type(n) in (int, float) and n not in (0, 1, 2, 0.5)]

    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Settings"):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and each.value]
            found += [
                f"{node.name}.{ast.unparse(each.target)}"
                for each in fields
                if type(getattr(each.value, "value", None)) in (int, float) or numbers(each.value)
            ]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value and numbers(node.value):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found += {ast.unparse(target)} - NOT_CHOSEN
    scopes = [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    functions = [n for scope in scopes for n in scope.body if isinstance(n, ast.FunctionDef)]
    for function in functions:
        literals = [value for statement in function.body for value in numbers(statement)]
        is_text = function.name in ("table", "others")
        found += [
            f"{function.name}: {value}"
            for value in literals
            if not is_text and 1e-6 < abs(value) < 1e6
        ]
    return found


def test_the_controller_has_no_more_chosen_values_than_are_counted():
    found = {
        path: chosen_values(tree)
        for path, tree in trees().items()
        if path.parts[0] == "control" and not NO_VALUES.intersection(path.parts)
    }
    num = sum(map(len, found.values()))
    assert num == CHOSEN_VALUES, "\n".join(
        f"{name}: {', '.join(values)}" for name, values in found.items() if values
    )


def test_chosen_values_are_seen():
    text = (
        "A = 7\nclass XSettings:\n    b: float = 0.3\n    c: bool = True\ndef f(x):\n    return 4 "
        "* x + 1"
    )
    assert chosen_values(ast.parse(text)) == ["A", "XSettings.b", "f: 4"]
