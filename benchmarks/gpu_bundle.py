"""A bundle of vLLM's CUDA build for a machine that has a Hopper GPU and no network: at most 42 MB.

    python benchmarks/gpu_bundle.py --vllm 0.33.0 --output .gpu
    python benchmarks/gpu_cells.py --bundle .gpu            # there, with its own Python; make test-gpu BUNDLE=.gpu

The machine has Python 3.12, torch 2.11 for CUDA 13, Triton 3.6, transformers 5.17 and numba. Of
vLLM's wheel (327 MB) the bundle keeps what the engine needs for dense models in bf16 and fp32:
machine code of other cards is removed, and so are kernels of other models. What vLLM imports beside
it comes from package registries, too. The checkout travels beside the bundle; its trained heads
(models/smartspec_models/heads/*/*.safetensors) may be left out.

Takes some minutes, pip, 2 GB of disk. gpu_cells.py --emulated tries a bundle where there is no GPU.
"""  # noqa: E501

import subprocess
import sys
import tarfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from lib.commands import application, console_of, run
from lib.gpu.fatbin import prune
from lib.gpu.packages import LEFT_OUT, LIBRARIES, PACKAGES, STAND_INS

ARCHIVE = "vllm.tar.xz"
LARGEST = 42_000_000  # bytes
HOPPER = 90
PRESET = 9  # of xz: far repetitions are found
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "linux_x86_64",
)
STAND_IN = '''"""Imported by vLLM, and never used here."""


class Anything:
    def __init__(self, *arguments, **options): ...

    def __class_getitem__(cls, item):
        return cls


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything
'''
app = application(__doc__)
console = console_of(120)


@app.command()
def gpu_bundle(
    vllm: Annotated[str, typer.Option(help=f"Version: {', '.join(PACKAGES)}.")] = "0.33.0",
    output: Annotated[Path, typer.Option(help="Folder of the bundle.")] = Path(".gpu"),
    wheels: Annotated[
        Path | None, typer.Option(help="Folder where downloaded wheels stay, to build anew.")
    ] = None,
) -> None:
    """Builds the bundle from package registries."""
    if vllm not in PACKAGES:
        raise ValueError(
            f"vLLM {vllm} has no list of packages in lib/gpu/packages.py: use {', '.join(PACKAGES)}"
        )
    with TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        for wheel in download(
            [f"vllm=={vllm}", *PACKAGES[vllm]], wheels or Path(folder) / "wheels"
        ):
            unpack(wheel, site)
        add_stand_ins(site)
        output.mkdir(parents=True, exist_ok=True)
        size = pack(site, output / ARCHIVE)
    console.print(f"{output / ARCHIVE}: {size / 1e6:.1f} MB")
    if size > LARGEST:
        raise ValueError(
            f"the bundle has {size / 1e6:.1f} MB, {LARGEST / 1e6:.0f} are allowed: leave out more"
        )


def download(packages: list[str], folder: Path) -> list[Path]:
    """Wheels for the machine's Python, whichever runs this."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-qqq",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    command += ["--python-version", "3.12", "--implementation", "cp"]
    command += [word for name in ("cp312", "abi3", "none") for word in ("--abi", name)]
    command += [word for name in PLATFORMS for word in ("--platform", name)]
    subprocess.run([*command, "--dest", str(folder), *packages], check=True)
    names = {package.partition("==")[0].replace("-", "_").lower() for package in packages}
    return [
        wheel
        for wheel in sorted(folder.glob("*.whl"))
        if wheel.name.partition("-")[0].lower() in names
    ]


def unpack(wheel: Path, site: Path) -> None:
    """What the bundle keeps of a wheel. Of shared libraries, what the card runs."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if (
                name.endswith("/")
                or ".data/" in name
                or any(fnmatch(name, pattern) for pattern in LEFT_OUT)
            ):
                continue
            content = bytearray(archive.read(name))
            if name in LIBRARIES:
                stay, go = prune(content, HOPPER, **LIBRARIES[name])
                console.print(
                    f"{name}: {(stay + go) / 1e6:.0f} MB of machine code, {stay / 1e6:.0f} MB stay"
                )
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def add_stand_ins(site: Path) -> None:
    for name in STAND_INS:
        folder = site / name.replace(".", "/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(STAND_IN)


def pack(site: Path, archive: Path) -> int:
    """Bytes of the archive. The same content gives the same bytes."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        info.mode = 0o644
        return info

    with tarfile.open(archive, "w:xz", preset=PRESET) as tar:
        for path in sorted(site.rglob("*")):
            if path.is_file():
                tar.add(path, str(path.relative_to(site)), filter=plain)
    return archive.stat().st_size


if __name__ == "__main__":
    run(app)
