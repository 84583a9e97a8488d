"""Importing transformers without what serving never uses: torch's compiler and torch's distributed tensors.

transformers imports both for decorators and type checks, which takes as long as torch itself and 75 MB. A process that
only serves calls this first; results are the same without it.
"""

import gc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from smartspec.engine.transformers_index import import_indexed

COMPILER = "torch._dynamo"
_MARKS = ("disable", "allow_in_graph", "assume_constant_result")


def import_transformers() -> None:
    """Import the part of transformers that models need. Does nothing where it was imported already."""
    if "transformers" in sys.modules or COMPILER in sys.modules:
        return
    _defer_compiler()
    import_indexed()
    _say_there_is_no_distributed()
    import transformers.modeling_utils  # noqa: F401


@contextmanager
def quick_imports() -> Iterator[None]:
    """Inside the block, what is imported is not searched for garbage, which would be a tenth of the time: it stays.
    transformers is imported first, as import_transformers does it."""
    with no_collection():
        import_transformers()
        yield


@contextmanager
def no_collection() -> Iterator[None]:
    """Inside the block garbage in cycles stays."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Deferred(ModuleType):
    """A package that is loaded when something of it is used; its submodules can be imported without it."""

    def __getattr__(self, name: str) -> object:
        self.__class__ = ModuleType
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def _defer_compiler() -> None:
    """Functions that transformers marks for the compiler stay as they are: what was marked before it is loaded is
    compiled as if it were not marked, which is slower for some, and nothing here is compiled."""
    spec = importlib.util.find_spec(COMPILER)
    if spec is None:
        return
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _Deferred
    for mark in _MARKS:
        setattr(module, mark, _unmarked)
    sys.modules[COMPILER] = module


def _unmarked(function=None, *_, **__):
    return _unmarked if function is None else function


def _say_there_is_no_distributed() -> None:
    """transformers queries torch once and remembers the answer; it can do without."""
    import torch
    from transformers.utils import is_torch_distributed_available

    is_available = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        is_torch_distributed_available()
    finally:
        torch.distributed.is_available = is_available
