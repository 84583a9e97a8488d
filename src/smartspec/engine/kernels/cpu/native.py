"""Our own kernels for processors, C compiled once with the system's compiler into the cache folder.

Where there is no compiler, or where a kernel does not apply, everything runs through torch instead.
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

from smartspec.engine.cache_folder import cache_folder

FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC")
if platform.machine() in ("x86_64", "AMD64"):
    FLAGS += ("-mprefer-vector-width=512",)  # by itself gcc keeps loops at half of that, a quarter of the time of some


@functools.cache
def load_kernels(name: str) -> ctypes.CDLL | None:
    """The compiled library of name.c beside this file, or None where it cannot be built; compiled on first use."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    openmp = _openmp_of_torch()
    if compiler is None or openmp is None:
        return None
    source = Path(__file__).with_name(f"{name}.c")
    library = _library_path(source, compiler)
    try:
        if not library.is_file():
            _compile(compiler, source, library)
        # The kernels leave OpenMP's symbols open and take those of torch: a second runtime would mean a second pool.
        ctypes.CDLL(openmp, mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.CalledProcessError):
        return None


def _library_path(source: Path, compiler: str) -> Path:
    processor = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    model = re.findall(r"^(?:model name|flags)\s*:.*$", processor, re.MULTILINE)
    texts = [path.read_text() for path in (source, *sorted(source.parent.glob("*.h")))]
    key = hashlib.sha256(repr((texts, FLAGS, compiler, model)).encode()).hexdigest()[:16]
    return cache_folder() / "kernels" / f"{source.stem}-{key}.so"


def _compile(compiler: str, source: Path, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    made = library.with_suffix(f".{os.getpid()}.tmp")
    compiled = made.with_suffix(".o")
    subprocess.run([compiler, *FLAGS, "-c", str(source), "-o", str(compiled)], check=True, capture_output=True)
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
