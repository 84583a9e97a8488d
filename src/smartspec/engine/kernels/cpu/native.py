"""Our own kernels for processors, C compiled once with the system's compiler into the cache folder.

Where they cannot be built, or where a kernel does not apply, everything runs through torch instead,
more slowly. What runs, and why, is in the log of a start and in `/v1/speculation`.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from smartspec.engine.cache_folder import cache_folder, why_untrusted

MACHINE = "-march=native"
# Sums stay in the order they are written in: a row has the same bits whatever else is in its pass.
FLAGS = ("-O3", MACHINE, "-ffast-math", "-fno-associative-math", "-fopenmp", "-fPIC")
if platform.machine() in ("x86_64", "AMD64"):
    # by itself gcc keeps loops at half of that, a quarter of the time of some
    FLAGS += ("-mprefer-vector-width=512",)
DIGEST_BYTES = 32
_CPU_INFO, _MAPPINGS = Path("/proc/cpuinfo"), Path("/proc/self/maps")
# What says which instructions a processor has, on x86 and on ARM; the rest of /proc/cpuinfo changes
# while it runs.
_CPU_FIELDS = re.compile(
    r"^(?:vendor_id|cpu family|model|model name|flags|Features|CPU \w+|isa)\s*:.*$", re.MULTILINE
)

logger = logging.getLogger(__name__)


class KernelsUnavailable(Exception):
    """The message says why, so that it reads after "torch's, because"."""


@dataclass(frozen=True)
class Kernels:
    """The kernels of one C file."""

    library: ctypes.CDLL | None  # the compiled functions, None where torch computes instead
    about: str  # what they are compiled with and for, or why there are none


@functools.cache
def load_kernels(name: str) -> Kernels:
    """The kernels of name.c beside this file, compiled on first use."""
    source = Path(__file__).with_name(f"{name}.c")
    try:
        # The kernels leave OpenMP's symbols open and take those of torch: a second runtime would
        # mean a second pool.
        ctypes.CDLL(_openmp_of_torch(), mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(_library(source)))
    except KernelsUnavailable as reason:
        return Kernels(None, str(reason))
    except OSError as error:
        return Kernels(None, f"they cannot be built or loaded ({error})")
    library.compiler.restype = library.instruction_set.restype = ctypes.c_char_p
    return Kernels(
        library, f"{library.compiler().decode()} for {library.instruction_set().decode()}"
    )


def is_compiled(name: str) -> bool:
    """True if a start compiles nothing of name.c: it lies there, or cannot be compiled."""
    source = Path(__file__).with_name(f"{name}.c")
    try:
        compiler_command()
        return any(map(_is_usable, _folder().glob(f"{source.stem}-{_key(source)}-*.so")))
    except (KernelsUnavailable, OSError):
        return True


@functools.cache
def key(name: str) -> str:
    """Hash of all that the kernels of name.c depend on, "" where that cannot be said."""
    try:
        return _key(Path(__file__).with_name(f"{name}.c"))
    except (KernelsUnavailable, OSError):
        return ""


def why_not(name: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """The reason why the kernels of name.c do not run on such tensors, None where they do."""
    if device.type != "cpu":
        return f"the device is {device.type}"
    if dtype != torch.float32:
        return f"the dtype is {str(dtype).removeprefix('torch.')}"
    kernels = load_kernels(name)
    return kernels.about if kernels.library is None else None


def compiler_command() -> list[str]:
    """$CC as a shell would split it, or the system's compiler. Raises KernelsUnavailable where
    there is none."""
    words = _words_of_cc() or [shutil.which("gcc") or shutil.which("cc") or ""]
    if not words[0]:
        raise KernelsUnavailable("no C compiler was found: install gcc, or name a compiler in CC")
    if shutil.which(words[0]) is None:
        raise KernelsUnavailable(f"there is no C compiler {words[0]!r}, which CC names")
    return words


def _words_of_cc() -> list[str]:
    try:
        return shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise KernelsUnavailable(f"CC={os.environ['CC']!r} is not a command ({error})") from error


def _flags(command: list[str]) -> list[str]:
    """Ours for this command, whose own choice of a processor holds."""
    has_machine = any(word.startswith(("-march=", "-mcpu=")) for word in command)
    return [flag for flag in FLAGS if flag != MACHINE or not has_machine]


def _library(source: Path) -> Path:
    """The file of the compiled source. One that is there needs no compiler; without a compiler, any
    compiler's will do."""
    folder, key = _folder(), _key(source)
    try:
        command = compiler_command()
    except KernelsUnavailable:
        found = next(filter(_is_usable, sorted(folder.glob(f"{source.stem}-{key}-*.so"))), None)
        if found is None:
            raise
        return found
    program = "-".join(Path(word).name for word in command if not word.startswith("-"))
    path = folder / f"{source.stem}-{key}-{program}.so"
    if not _is_usable(path):
        _compile(command, source, path)
    return path


def _folder() -> Path:
    """The folder of compiled kernels: below the cache folder or, where others could write there
    what this process would run, in a folder for temporary files that only this user can write.
    Raises KernelsUnavailable where both are of others."""
    folder, private = (
        cache_folder() / "kernels",
        Path(tempfile.gettempdir()) / f"smartspec-kernels-{os.geteuid()}",
    )
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    reason = why_untrusted(folder)
    if reason is None:
        return folder
    remedy = (
        "let only this user write it (chmod go-w) or set SMARTSPEC_CACHE to a folder of this user"
    )
    private.mkdir(mode=0o700, exist_ok=True)
    if (why_neither := why_untrusted(private)) is not None:
        raise KernelsUnavailable(
            f"compiled kernels could be of another user: {reason}, {why_neither}; {remedy}"
        )
    logger.warning(
        "%s: kernels that lie there are not run, they are kept in %s instead; %s",
        reason,
        private,
        remedy,
    )
    return private


def _key(source: Path) -> str:
    """Hash of all that the instructions in a library depend on, known without a compiler. Machines
    that share a cache folder must not load each other's: what one of them has, another may not
    know."""
    texts = [path.read_text() for path in (source, *sorted(source.parent.glob("*.h")))]
    processor = _CPU_FIELDS.findall(_CPU_INFO.read_text().split("\n\n")[0])
    command = _words_of_cc()
    flags = [word for word in command if word.startswith("-")] + _flags(command)
    key = texts, flags, platform.machine(), platform.libc_ver(), processor
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]


def _compile(command: list[str], source: Path, library: Path) -> None:
    """Write the library beside its final place and rename it; after it stands its digest."""
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".compiling-") as folder:
        compiled, made = Path(folder) / "kernels.o", Path(folder) / "kernels.so"
        _run([*command, *_flags(command), "-c", str(source), "-o", str(compiled)])
        _run([*command, "-shared", str(compiled), "-o", str(made), "-lm"])
        content = made.read_bytes()
        made.write_bytes(content + hashlib.sha256(content).digest())
        made.chmod(0o644)
        made.replace(library)


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise KernelsUnavailable(
            f"{command[0]} failed: {said[-1].strip() if said else f'exit {done.returncode}'}"
        )


def _is_usable(library: Path) -> bool:
    """True if no other user can have written the file, and it ends in the digest of what stands
    before: reading a library that was cut short may end the process."""
    if not library.is_file() or why_untrusted(library) is not None:
        return False
    content = library.read_bytes()
    return hashlib.sha256(content[:-DIGEST_BYTES]).digest() == content[-DIGEST_BYTES:]


def _openmp_of_torch() -> str:
    """Path of the OpenMP runtime this process has loaded, which is torch's. Raises
    KernelsUnavailable."""
    if not _MAPPINGS.is_file() or not _CPU_INFO.is_file():
        raise KernelsUnavailable(f"they need Linux, this is {platform.system()}")
    found = re.search(
        r"^[^/\n]*(/.*/lib(?:gomp|iomp5|omp)[^/\n]*\.so[^/\n]*)$",
        _MAPPINGS.read_text(),
        re.MULTILINE,
    )
    if found is None:
        raise KernelsUnavailable("torch has loaded no OpenMP runtime")
    return found[1]
