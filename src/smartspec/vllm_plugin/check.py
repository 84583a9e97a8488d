"""The check of a version of vLLM: members that this plugin needs. `python -m
smartspec.vllm_plugin.check [PATH]`.

It reads vLLM's source and runs none of it. So it works on a clone of vLLM's main branch, on an
unpacked wheel, and in an environment without torch. It includes the checks of the scheduler and the
workers at their start (compatibility.py).
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from smartspec.vllm_plugin.compatibility import version_problem
from smartspec.vllm_plugin.needs import ADAPTIVE_NEEDS, NEEDS, Need

TESTED = {  # methods of vLLM by where they ran with the plugin, see docs/vllm-how.md
    "in vLLM's CPU build and on a GPU": "ngram, eagle3",
    "in vLLM's CPU build": "draft_model, eagle, P-EAGLE, mtp, dflash, medusa, suffix, custom_class",
    "on a GPU": "ngram_gpu",
    "nowhere yet": "dspark, PARD, Gemma's and Step's heads",
}


def package_of(path: Path) -> Path:
    """Return the package vllm at a path, of a clone or of a folder of packages. FileNotFoundError
    without one."""
    for folder in (path, path / "vllm"):
        if (folder / "v1").is_dir() and (folder / "config").is_dir():
            return folder
    raise FileNotFoundError(
        f"{path} holds no vLLM: give a clone, an unpacked wheel or a folder of installed packages"
    )


def installed_package() -> Path | None:
    """Return the package vllm that this interpreter would import, without an import. None without
    one."""
    spec = find_spec("vllm")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def version_of(package: Path) -> str | None:
    """Return the version in _version.py, which builds write. None in a clone."""
    path = package / "_version.py"
    text = path.read_text("utf-8") if path.exists() else ""
    match = re.search(r"""^__version__ *=[^'"\n]*['"]([^'"\n]+)['"]""", text, re.MULTILINE)
    return match.group(1) if match else None


def missing_members(package: Path, needs: tuple[Need, ...] = NEEDS) -> list[str]:
    """Return one line for each member that the plugin needs and this source lacks."""
    return [line for need in needs for line in _missing_members(package, need)]


def _missing_members(package: Path, need: Need) -> Iterator[str]:
    path, name = package / need.file, need.owner or need.file
    if (owner := _class(path, need.owner)) is None:
        yield f"{name}: {need.file} {'has no such class' if path.is_file() else 'does not exist'}"
        return
    base = _class(package / need.base[0], need.base[1]) if need.base else None
    classes = [*filter(None, (base, owner))]
    methods = {
        node.name: node
        for each in classes
        for node in each.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for member, expected in need.methods.items():
        if member not in methods:
            yield f"{name}.{member} does not exist"
        elif (parameters := _parameters(methods[member]))[: len(expected)] != list(expected):
            yield f"{name}.{member} takes {', '.join(parameters)}; expected {', '.join(expected)}"
    known = set(methods).union(*map(_fields, classes))
    yield from (
        f"{name}.{member} does not exist" for member in need.attributes if member not in known
    )


def _class(path: Path, name: str) -> ast.ClassDef | ast.Module | None:
    tree = ast.parse(path.read_text("utf-8")) if path.is_file() else None
    if tree is None or not name:
        return tree
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return next((each for each in classes if each.name == name), None)


def _parameters(method: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = method.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _fields(owner: ast.ClassDef | ast.Module) -> set[str]:
    """Return the names that a class's body assigns, and those that its methods set on self."""
    names = set()
    for node in ast.walk(owner):
        match node:
            case ast.Attribute(ast.Name("self"), name, ast.Store()):
                names.add(name)
    for node in owner.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            names |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names


def main(arguments: list[str] | None = None) -> int:
    """Print the version and the missing members. Exit status: 0, 1 where some are missing, 2
    without a vLLM."""
    parser = argparse.ArgumentParser(
        prog="python -m smartspec.vllm_plugin.check", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        help="clone, unpacked wheel or folder (default: the installed one)",
    )
    path = parser.parse_args(arguments).path
    try:
        package = installed_package() if path is None else package_of(path)
        if package is None:
            raise FileNotFoundError("vLLM is not installed here: give the path of its source")
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    version = version_of(package)
    print(f"vLLM {version or 'of a clone'} in {package}")
    if version is not None and (problem := version_problem(version)):
        print(f"{problem}: the scheduler would keep vLLM's own")
    lines = missing_members(package)
    num_needs = sum(len(need.methods) + len(need.attributes) for need in NEEDS)
    print("\n".join(lines) if lines else f"all {num_needs} members that the plugin needs are there")
    print("\n".join(f"tested {where}: {methods}" for where, methods in TESTED.items()))
    for line in missing_members(package, ADAPTIVE_NEEDS):
        print(f"beside adaptive verification, vLLM's own step times are used: {line}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
