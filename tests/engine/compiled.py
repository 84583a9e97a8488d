"""Tests of our own kernels run wherever there is a compiler, and say so where there is none."""

import functools
import platform
import shlex
from pathlib import Path

import pytest

from smartspec.engine.kernels.cpu import native, quantized_linear
from smartspec.engine.kernels.cpu.native import KernelsUnavailable, compiler_command, load_kernels
from smartspec.engine.models import ragged_runner

# what a processor of this name has
NEEDS = {"haswell": {"avx2", "fma"}, "skylake-avx512": {"avx512bw"}}


@pytest.fixture(params=["the kernels of this machine", "torch"])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        attend_in_torch(monkeypatch)


def attend_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where our kernel does not take a model's heads."""
    monkeypatch.setattr(ragged_runner, "max_tokens_per_tile", lambda *heads: 0)


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        native, "load_kernels", lambda name: native.Kernels(None, "this machine has none")
    )


def use_processor(patch: pytest.MonkeyPatch, name: str) -> None:
    """Kernels of linears compiled for an x86 processor of this name. Skips where this one cannot
    run them."""
    need_processor(name)
    patch.setenv("CC", f"{shlex.join(compiler_command())} -march={name}")
    patch.setattr(quantized_linear, "load_kernels", load_kernels.__wrapped__)
    patch.setattr(
        quantized_linear, "_kernels", functools.cache(quantized_linear._kernels.__wrapped__)
    )


def need_processor(name: str) -> None:
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    known = set(Path("/proc/cpuinfo").read_text().split()) if is_x86 else set()
    if not is_x86 or not NEEDS.get(name, set()) <= known:
        pytest.skip(f"this processor cannot run what is compiled for {name}")


def need_kernels(*names: str) -> None:
    """Skip where there is no C compiler and nothing compiled before; where there is one, missing
    kernels fail."""
    missing = [name for name in names if load_kernels(name).library is None]
    if not missing:
        return
    try:
        compiler_command()
    except KernelsUnavailable as reason:
        pytest.skip(f"our kernels are not here: {reason}")
    raise AssertionError(f"{missing[0]}: {load_kernels(missing[0]).about}")
