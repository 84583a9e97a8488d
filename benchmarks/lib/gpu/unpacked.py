"""A bundle, unpacked: what Python is to import, and the environment that vLLM is to find."""

import compileall
import os
import sys
import tarfile
from pathlib import Path
from py_compile import PycInvalidationMode

from lib.gpu import faked

ARCHIVE, KERNELS = "vllm.tar.xz", "triton.tgz"
COMPILED = "compiled"  # folder of kernels of Triton and torch.compile


def unpack(bundle: Path, folder: Path) -> None:
    """Once. FileNotFoundError without the bundle's archive."""
    site, archive = folder / "site", bundle / ARCHIVE
    if not archive.exists():
        raise FileNotFoundError(
            f"{archive} does not exist: make it with benchmarks/gpu_bundle.py --output {bundle}"
        )
    if site.exists():
        return
    with tarfile.open(archive, "r:xz") as tar:
        tar.extractall(folder / "unpacking", filter="data")
    options = {"quiet": 2, "workers": 0, "invalidation_mode": PycInvalidationMode.UNCHECKED_HASH}
    compileall.compile_dir(folder / "unpacking", **options)
    (folder / "unpacking").rename(site)
    if (kernels := bundle / KERNELS).exists():
        with tarfile.open(kernels) as tar:
            tar.extractall(folder, filter="data")


def keep_kernels(folder: Path, output: Path) -> None:
    """Compiled kernels, for the bundle's folder on the next machine."""
    if (folder / COMPILED).is_dir():
        with tarfile.open(output / KERNELS, "w:gz") as tar:
            tar.add(folder / COMPILED, COMPILED)


def variables(folder: Path) -> dict[str, str]:
    """Of the environment. Graphs of mixed steps come without torch.compile, which would take
    minutes."""
    return {
        "PYTHONPATH": os.pathsep.join([str(Path("src").resolve()), str(folder / "site")]),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_BREAKABLE_CUDAGRAPH": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "VLLM_HOST_IP": "127.0.0.1",
        "TRITON_CACHE_DIR": str(folder / COMPILED / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / COMPILED / "inductor"),
        "HF_HUB_OFFLINE": "1",
        "NUMBA_THREADING_LAYER": "workqueue",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
    }


def become(folder: Path, emulates: bool) -> None:
    """Starts this command anew in that environment, unless it runs in it."""
    wanted = variables(folder)
    if emulates:
        wanted["LD_LIBRARY_PATH"] = str(folder / "faked")
        faked.build(folder / "faked")
    if os.environ.get("PYTHONPATH") == wanted["PYTHONPATH"]:
        return
    os.execve(sys.executable, [sys.executable, *sys.argv], dict(os.environ) | wanted)
