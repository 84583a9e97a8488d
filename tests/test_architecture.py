"""The sizes of the house: tokens of code, functions, the wheel, includes of kernels, chosen
values."""

import ast
import io
import re
import tokenize
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE, LAB = ROOT / "src" / "smartspec", ROOT / "lab"

# Tokens of Python without comments and docstrings, see code_tokens. They only go down; who raises
# one says why in CHANGELOG.md.
MAX_TOKENS = {
    "src": 275_000,
    "src/smartspec/control": 32_000,
    "src/smartspec/control/goodput": 4_850,
    "src/smartspec/vllm_plugin": 28_950,
    "src/smartspec/cli": 13_450,
    "src/smartspec/server": 39_000,
    "tests": 367_700,
}
MAX_FUNCTION_TOKENS, MAX_ARGUMENTS = 610, 8
MAX_WHEEL_BYTES = 2_500_000  # unpacked
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
        path: chosen_values(ast.parse(path.read_text("utf-8")))
        for path in (SOURCE / "control").rglob("*.py")
        if not NO_VALUES.intersection(path.parts)
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
