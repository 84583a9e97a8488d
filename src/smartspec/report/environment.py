"""The machine and the versions that figures belong to."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from smartspec.core.processor import processor_fact, processor_name

PACKAGES = ("smartspec", "numpy", "torch", "transformers", "vllm")
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddot", "sve")


def environment() -> dict[str, str]:
    """The facts about this machine for a reader, by name. commit is left out where the package is
    no checkout."""
    flags = processor_fact("flags", "Features").split()
    found = {
        "cpu": processor_name(),
        "instructions": ", ".join(each for each in INSTRUCTIONS if each in flags) or "unknown",
        "cores": str(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        ),
        "threads (OMP_NUM_THREADS)": os.environ.get("OMP_NUM_THREADS", "not set"),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(
            f"{package} {number}" for package in PACKAGES if (number := _version(package))
        ),
    }
    return found | ({"commit": commit} if (commit := _commit()) else {})


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout that this file lies in, marked where it has changes; None for an
    installed package."""
    try:
        if _git("ls-files", __file__):
            return _git("describe", "--always", "--dirty", "--exclude=*") or None
    except OSError:  # no git
        pass
    return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
