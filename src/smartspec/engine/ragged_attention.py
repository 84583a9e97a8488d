"""Our own attention kernel for processors, compiled once with the system's C compiler.

Why: at 16 requests of unequal length the padded calls of torch's attention took 30 of 69 ms of a step, four times what
reading the KV takes; in prefill they compute what lies behind the diagonal, a quarter of a pass over 1024 tokens.
Without a compiler, or where the kernel does not apply, everything runs through torch instead.
"""

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import torch

from smartspec.engine.default_model import cache_folder

SOURCE = Path(__file__).with_name("ragged_attention.c")
FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC")
if platform.machine() in ("x86_64", "AMD64"):
    FLAGS += ("-mprefer-vector-width=512",)  # by itself gcc keeps loops at half of that: a quarter of the kernel's time
MAX_ROWS = 256
MAX_TILE_TOKENS = 64
MAX_HEAD_DIM = 256


class _Attention(ctypes.Structure):
    """The struct of the same name in ragged_attention.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "keys", "values", "output", "tiles")),
        *((name, ctypes.c_int64) for name in ("query_row", "query_head", "key_row", "key_head")),
        *((name, ctypes.c_int64) for name in ("value_row", "value_head", "num_tiles", "num_kv_heads")),
        *((name, ctypes.c_int64) for name in ("group_size", "max_len", "head_dim", "window")),
        ("scale", ctypes.c_float),
    ]


def ragged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    output: torch.Tensor,
    tiles: torch.Tensor,
    scale: float,
    window: int | None,
) -> None:
    """Write the new tokens' key and value into the cache and attend, all in fp32 on CPU.

    query: [num_heads, N, head_dim]; key, value: [num_kv_heads, N, head_dim]; keys, values: one layer of the cache,
    [slots, num_kv_heads, max_len, head_dim]; output: [N, num_heads, head_dim], filled for the rows of tiles.
    tiles: int64 [S, 4] of (slot, first position, first row, number of tokens). window: sliding window in tokens.
    """
    num_kv_heads, _, head_dim = key.shape
    kernel = load_kernel()
    kernel(
        ctypes.byref(
            _Attention(
                *(tensor.data_ptr() for tensor in (query, key, value, keys, values, output, tiles)),
                *(query.stride(1), query.stride(0), key.stride(1), key.stride(0), value.stride(1), value.stride(0)),
                *(len(tiles), num_kv_heads, query.shape[0] // num_kv_heads, keys.shape[2], head_dim, window or 0),
                scale,
            )
        )
    )


def max_tokens_per_tile(device: torch.device, dtype: torch.dtype, group_size: int, head_dim: int) -> int:
    """New tokens of a request the kernel takes at once; 0 where it does not apply or could not be built."""
    applies = device.type == "cpu" and dtype == torch.float32 and head_dim <= MAX_HEAD_DIM
    return min(MAX_TILE_TOKENS, MAX_ROWS // group_size) if applies and load_kernel() is not None else 0


@functools.cache
def load_kernel() -> ctypes._CFuncPtr | None:
    """The compiled kernel, or None where there is no compiler; compiled on first use into the cache folder."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    openmp = _openmp_of_torch()
    if compiler is None or openmp is None:
        return None
    library = _library_path(compiler)
    try:
        if not library.is_file():
            _compile(compiler, library)
        # The kernel leaves OpenMP's symbols open and takes those of torch: a second runtime would mean a second pool.
        ctypes.CDLL(openmp, mode=ctypes.RTLD_GLOBAL)
        kernel = ctypes.CDLL(str(library)).ragged_attention
    except (OSError, subprocess.CalledProcessError):
        return None
    kernel.restype = None
    return kernel


def _library_path(compiler: str) -> Path:
    processor = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    model = re.findall(r"^(?:model name|flags)\s*:.*$", processor, re.MULTILINE)
    key = hashlib.sha256(repr((SOURCE.read_text(), FLAGS, compiler, model)).encode()).hexdigest()[:16]
    return cache_folder() / "kernels" / f"ragged_attention-{key}.so"


def _compile(compiler: str, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    made = library.with_suffix(f".{os.getpid()}.tmp")
    compiled = made.with_suffix(".o")
    subprocess.run([compiler, *FLAGS, "-c", str(SOURCE), "-o", str(compiled)], check=True, capture_output=True)
    subprocess.run([compiler, "-shared", str(compiled), "-o", str(made), "-lm"], check=True, capture_output=True)
    compiled.unlink()
    made.replace(library)


def _openmp_of_torch() -> str | None:
    """Path of the OpenMP runtime this process has loaded, which is torch's."""
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        return None
    found = re.search(r"(/\S*lib(?:gomp|iomp5|omp)[^/\s]*\.so\S*)", maps.read_text())
    return None if found is None else found.group(1)
