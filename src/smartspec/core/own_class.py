"""Classes of a user's own by name, as `uvicorn module:app` names an application: module:Class, or
module:Class:3, whose number goes to the constructor."""

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

_IDENTIFIER = r"[^\W\d]\w*"
_NAME = re.compile(rf"({_IDENTIFIER}(?:\.{_IDENTIFIER})*):({_IDENTIFIER})(?::(.*))?")


def is_own_class(name: str) -> bool:
    """True if a name has the form module:Class, with or without numbers."""
    return _NAME.fullmatch(name) is not None


def load_class(name: str, kind: str, missing: Callable[[type], list[str]]) -> type:
    """Return the class of that name. The module is searched as Python does, the current directory
    first.

    kind: "policy" or "drafter", for messages. missing: returns the members that a class lacks for
    that. ValueError where module or class do not exist, the module cannot be imported, or the class
    lacks something.
    """
    found = _NAME.fullmatch(name)
    assert found is not None, f"{name!r} names no class"
    module = _import(name, kind, found[1])
    members = {n: member for n, member in vars(module).items() if inspect.isclass(member)}
    if found[2] not in members:
        fitting = ", ".join(n for n, member in members.items() if not missing(member)) or "none"
        raise ValueError(
            f"{kind} {name!r}: module {found[1]!r} ({_file(module)}) has no class {found[2]!r}; "
            f"classes there that are a {kind}: {fitting}"
        )
    if lacking := missing(members[found[2]]):
        raise ValueError(f"{kind} {name!r} is no {kind}: it lacks {', '.join(lacking)}")
    return members[found[2]]


def make_own(name: str, kind: str, found: type, *given, **options):
    """Return an instance of the class of that name. Its arguments are those given, then the numbers
    in the name.

    ValueError where one is no number or the constructor fails.
    """
    numbers = [_number(name, kind, text) for text in name.split(":")[2:]]
    try:
        return found(*given, *numbers, **options)
    except Exception as error:
        raise ValueError(
            f"{kind} {name!r}: {found.__name__} cannot be made, {_describe(error)}"
        ) from error


def search_current_folder() -> str:
    """Make Python search the current directory first, as long as the process lives. Return its
    path."""
    folder = str(Path.cwd())
    if "" not in sys.path and folder not in sys.path:
        sys.path.insert(0, folder)  # it stays: a module may import its neighbours later
    return folder


def _number(name: str, kind: str, text: str) -> int | float:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    raise ValueError(
        f"{kind} {name!r}: {text!r} is no number, and the class can be given nothing else"
    )


def _import(name: str, kind: str, module: str) -> ModuleType:
    folder = search_current_folder()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ValueError(
                f"{kind} {name!r}: module {module!r} cannot be imported, {_describe(error)}"
            ) from error
        raise ValueError(
            f"{kind} {name!r}: there is no module {error.name!r} in {folder} or on Python's path: "
            "start in the folder of its file, or name that in PYTHONPATH"
        ) from error
    except Exception as error:
        raise ValueError(
            f"{kind} {name!r}: module {module!r} cannot be imported, {_describe(error)}"
        ) from error


def _describe(error: Exception) -> str:
    """Return the error, and its place in the user's file."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    is_users = place.filename not in (__file__, importlib.__file__)
    where = (
        f" ({place.filename}, line {place.lineno})"
        if is_users and not isinstance(error, SyntaxError)
        else ""
    )
    return f"{type(error).__name__}: {error}{where}"


def _file(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "a package without a file"
