"""Tests of our own kernels run wherever there is a compiler, and say so where there is none."""

import pytest

from smartspec.engine.kernels.cpu.native import KernelsUnavailable, compiler_command, load_kernels


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
