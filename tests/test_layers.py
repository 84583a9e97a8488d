"""The import tables of the architecture: which layer may import which, which libraries each may
use, and what stands before what inside a layer."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "smartspec"

LAYERS = {
    "control": "",
    "core": "control",
    "drafters": "control core",
    "workload": "",
    "engine": "control core drafters",
    "server": "control core engine",
    "texts": "drafters engine",
    "observation": "control",
    "sim": "control core drafters workload observation",
    "bench": "workload",
    "report": "control core drafters workload sim bench",
    "vllm_plugin": "control core drafters observation",
    "sglang_plugin": "control core vllm_plugin",
}
LIBRARIES = {
    "control": "numpy",
    "core": "numpy",
    "drafters": "numpy",
    "workload": "numpy",
    "observation": "numpy",
    "sim": "numpy",
    "engine": (
        "numpy torch transformers tokenizers safetensors huggingface_hub gguf accelerate psutil"
    ),
    "server": (
        "numpy fastapi starlette pydantic pydantic_core uvicorn prometheus_client jinja2 "
        "llguidance opentelemetry httptools"
    ),
    "texts": "numpy transformers",
    "bench": "numpy httpx matplotlib rich",
    "report": "numpy httpx matplotlib rich jinja2",
    "vllm_plugin": "numpy vllm prometheus_client yaml",
    "sglang_plugin": "numpy sglang",
    "cli": "numpy typer rich",
}
# Within a layer: what a folder (or file) may import from its own level is what stands before it.
# The rest is on top.
ORDER = {
    "control": (
        "records checks log acceptance expected_tree estimates latency planning policy guard "
        "goodput uniform fixed policy_names what_if controller safe_controller __init__"
    ),
    "vllm_plugin": (
        "settings tested_versions needs compatibility check serve file_thread handover switch "
        "metrics_page proposer setup step costs speculation executor ab observed stat_logger "
        "scheduler __init__"
    ),
    "vllm_plugin/ab": "__init__ windows comparison results metrics toggle __main__",
    "vllm_plugin/observed": "__init__ collector observer __main__",
    "vllm_plugin/step": "__init__ batch callers decision adaptive under_way metrics",
    "vllm_plugin/costs": "__init__ steps sources",
    "vllm_plugin/speculation": "__init__ drafts learner decider speculation builder",
    "vllm_plugin/serve": "__init__ routes command __main__",
    "observation": (
        "records files acceptance step_times loads forecast length_tables card report __init__"
    ),
    "sglang_plugin": "timeline chooser policy ranks plugin __init__",
    "engine": "__init__ cache_folder kernels attention models sampling drafting text runtime",
    "server": "__init__ http live structured openai anthropic openapi app",
    "sim": (
        "settings perfect_estimates world perfect_outcomes simulated_drafter replay executor "
        "virtual_engine static_load scenario simulation controller_time length_table card_settings "
        "__init__"
    ),
}
LAYERS, LIBRARIES, ORDER = (
    {name: names.split() for name, names in table.items()} for table in (LAYERS, LIBRARIES, ORDER)
)
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
            # where lab/ is found, its tables are looked up by name (core/lab_tables.py)
            allowed = allowed or (layer == "cli" and node in deferred and top != "lab")
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
        ("cli/x.py", "def f():\n    from lab.policies import POLICIES"),
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
