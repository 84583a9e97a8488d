"""How our kernels are built, kept and reported; with compilers that only pretend, so that any
machine can run this."""

import hashlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from compiled import need_kernels
from tiny_models import as_loaded, tiny_llama

from smartspec.engine.kernels.cpu import native
from smartspec.engine.kernels.cpu.native import KernelsUnavailable, load_kernels
from smartspec.engine.models.decoder_layer import fuse_layers
from smartspec.engine.models.fusion import fuse
from smartspec.engine.models.load import DTYPES
from smartspec.engine.runtime.kernel_report import kernel_report

SOURCE = Path(native.__file__).with_name("elementwise.c")
COMPILER = """#!/bin/sh
echo "$@" >> "{calls}"
while [ $# -gt 1 ]; do
    if [ "$1" = -o ]; then echo compiled > "$2"; fi
    shift
done
"""


class Machine:
    """With an empty cache folder and no compiler but those that are installed."""

    def __init__(self, monkeypatch, folder: Path):
        self.monkeypatch, self.folder = monkeypatch, folder
        self.programs, self.cache = folder / "programs", folder / "cache"
        self.programs.mkdir()
        monkeypatch.setenv("SMARTSPEC_CACHE", str(self.cache))
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        monkeypatch.setenv("PATH", str(self.programs))
        monkeypatch.delenv("CC", raising=False)

    def install(self, name: str = "gcc", text: str = COMPILER) -> Path:
        path = self.programs / name
        path.write_text(text.format(calls=self.folder / "calls"))
        path.chmod(0o755)
        return path

    def set_cc(self, command: str) -> None:
        self.monkeypatch.setenv("CC", command)

    @property
    def private(self) -> Path:
        """Where kernels are kept that cannot lie in the cache."""
        return self.folder / f"smartspec-kernels-{os.geteuid()}"

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def library(self) -> Path:
        return native._library(SOURCE)

    def reason(self) -> str:
        """Why there are no kernels, as a start would say."""
        kernels = load_kernels.__wrapped__("elementwise")
        assert kernels.library is None
        return kernels.about


@pytest.fixture
def machine(monkeypatch, tmp_path) -> Machine:
    return Machine(monkeypatch, tmp_path)


@pytest.mark.parametrize("command", ["{gcc} -pipe -DX='a b'", "'{gcc}' -pipe '-DX=a b'"])
def test_cc_is_split_as_a_shell_would(machine, command):
    machine.set_cc(command.format(gcc=machine.install("gcc-12")))
    assert machine.library().read_bytes().startswith(b"compiled\n")
    compiled, linked = machine.calls
    assert compiled.startswith("-pipe -DX=a b -O3") and linked.startswith("-pipe -DX=a b -shared")


def test_a_processor_named_in_cc_takes_the_place_of_this_one(machine):
    machine.install()
    machine.set_cc("gcc -march=haswell")
    chosen = machine.library()
    machine.set_cc("gcc")
    own = machine.library()
    assert chosen != own
    compilations = [call.split() for call in machine.calls if " -c " in call]
    assert [[word for word in call if "-march" in word] for call in compilations] == [
        ["-march=haswell"],
        ["-march=native"],
    ]


@pytest.mark.parametrize("built_by", ["gcc", "cc", "gcc-12"])
@pytest.mark.parametrize("missing", [None, "/nonexistent"])
def test_what_is_compiled_is_used_where_there_is_no_compiler(machine, built_by, missing):
    compiler = machine.install(built_by)
    if built_by == "gcc-12":
        machine.set_cc(str(compiler))
    library, calls = machine.library(), machine.calls
    assert machine.library() == library and machine.calls == calls, (
        "nor is a compiler called where there is one"
    )
    compiler.unlink()
    machine.monkeypatch.delenv("CC", raising=False)
    if missing:
        machine.set_cc(missing)
    assert machine.library() == library and machine.calls == calls


X86 = "processor : 0\nmodel name : EPYC\ncpu MHz : 2000\nflags : sse2 avx2{}\n\nprocessor : 1\n"
ARM = (
    "processor : 0\nFeatures : fp asimd{}\nCPU implementer : 0x41\nCPU part : 0xd0c\n\nprocessor : "
    "1\n"
)


@pytest.mark.parametrize(("cpu_info", "more"), [(X86, " avx512f"), (ARM, " sve")])
def test_machines_that_share_a_cache_folder_load_only_what_was_made_for_their_processor(
    machine, cpu_info, more
):
    compiler, file = machine.install(), machine.folder / "cpuinfo"
    machine.monkeypatch.setattr(native, "_CPU_INFO", file)
    file.write_text(cpu_info.format(more))
    large = machine.library()
    file.write_text(
        cpu_info.format(more).replace("2000", "2100").replace("processor : 1", "processor : 2")
    )
    assert machine.library() == large, "neither its clock nor its other cores make another machine"
    file.write_text(cpu_info.format(""))
    assert machine.library() != large
    for path in machine.cache.glob("kernels/*"):
        if path != large:
            path.unlink()
    compiler.unlink()
    with pytest.raises(KernelsUnavailable, match="no C compiler was found"):
        machine.library()


def test_compilations_at_the_same_time_in_the_same_folder_do_not_meet(machine, monkeypatch):
    """Two threads have one process id, as two containers may."""
    machine.install()
    both_compile = threading.Barrier(2, timeout=60)

    def run(command, **options):
        both_compile.wait()
        Path(command[command.index("-o") + 1]).write_text("compiled")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(native.subprocess, "run", run)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: machine.library(), range(2))
    assert list((machine.cache / "kernels").iterdir()) == [first] == [second]


def test_whether_a_start_has_to_compile(machine):
    compiler = machine.install()
    assert not native.is_compiled("elementwise")
    machine.library()
    assert native.is_compiled("elementwise")
    compiler.unlink()
    machine.monkeypatch.setenv("SMARTSPEC_CACHE", str(machine.cache / "another"))
    assert native.is_compiled("elementwise"), "it cannot be"


def test_a_compilation_that_fails_leaves_nothing(machine):
    machine.install(
        text="#!/bin/sh\necho 'one' >&2; echo 'error: what is AVX?' >&2; echo >&2; exit 1\n"
    )
    assert machine.reason().endswith("gcc failed: error: what is AVX?")
    assert list((machine.cache / "kernels").iterdir()) == []


def test_the_reason_says_what_to_do(machine):
    assert "install gcc" in machine.reason()
    machine.set_cc("/nonexistent")
    assert "'/nonexistent', which CC names" in machine.reason()
    machine.set_cc("'gcc")
    assert "is not a command" in machine.reason()
    machine.install()
    machine.set_cc("gcc")
    assert "cannot be built or loaded" in machine.reason(), (
        "what this compiler writes is no library"
    )
    machine.monkeypatch.setenv("SMARTSPEC_CACHE", str(machine.programs / "gcc"))
    assert "cannot be built or loaded" in machine.reason(), "there is no folder there"


def test_spaces_in_the_path_of_torch(machine):
    maps, path = machine.folder / "maps", "/home/a b/torch/lib/libgomp-a34b.so.1"
    first = "7f00-7f10 r-xp 00000000 08:01 12                 /usr/lib/libc.so.6\n"
    maps.write_text(
        first
        + f"7f10-7f20 r-xp 00000000 08:01 13                 {path}\n7f20-7f30 rw-p 0 00:00 0\n"
    )
    machine.monkeypatch.setattr(native, "_MAPPINGS", maps)
    assert native._openmp_of_torch() == path
    maps.write_text(first)
    assert "OpenMP" in machine.reason()


def test_the_report_tells_what_runs():
    model = tiny_llama()
    loaded = as_loaded(model)
    coarse = replace(loaded, dtype=DTYPES["bfloat16"])
    assert set(kernel_report(coarse).values()) == {"torch's, because the dtype is bfloat16"}
    elsewhere = replace(loaded, device=torch.device("cuda"))
    assert set(kernel_report(elsewhere).values()) == {"torch's, because the device is cuda"}
    assert "257 dimensions" in kernel_report(replace(loaded, head_dim=257))["attention"]
    libraries = {
        "attention": "ragged_attention",
        "elementwise": "elementwise",
        "linear": "passes",
        "layer": "passes",
    }
    need_kernels(*libraries.values())
    for part in ("elementwise", "linear", "layer"):
        assert (
            kernel_report(loaded)[part]
            == "torch's, because no layer of this model has a form for ours"
        )
    fuse(model)
    assert fuse_layers(model) == 2
    about = {name: load_kernels(library).about for name, library in libraries.items()}
    assert kernel_report(loaded) == {name: f"compiled with {text}" for name, text in about.items()}
    assert all(" for " in text for text in about.values())


def test_without_kernels_the_report_says_why_and_torch_computes_the_same(machine):
    """Both kinds of modules of one model, fused with and without kernels."""
    machine.monkeypatch.setattr(native, "load_kernels", load_kernels.__wrapped__)
    model, stock = tiny_llama(attention="sdpa"), tiny_llama(attention="sdpa")
    assert fuse(model)["attentions"] == 2
    report = kernel_report(as_loaded(model))
    assert all(
        text.startswith("torch's, because no C compiler was found") for text in report.values()
    )
    token_ids = torch.arange(20)[None]
    expected = stock.double()(token_ids).logits
    assert not any(getattr(module, "has_kernel", False) for module in model.modules())
    torch.testing.assert_close(model(token_ids).logits.double(), expected, rtol=1e-4, atol=1e-4)


# ---- whose files are run


def cut_short(library: Path, length: int) -> None:
    library.write_bytes(library.read_bytes()[:length])


def plant(library: Path, mode: int = 0o644) -> None:
    """Another's library in the place of ours, whole by its own digest."""
    content = b"of another user"
    library.write_bytes(content + hashlib.sha256(content).digest())
    library.chmod(mode)


def give_away(library: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    plant(library)
    os.chown(library, 12345, 12345)


def link(library: Path) -> None:
    plant(elsewhere := library.parents[1] / "elsewhere")
    library.unlink()
    library.symlink_to(elsewhere)


HARMS: dict[str, Callable[[Path], None]] = {
    **{f"cut to {length}": partial(cut_short, length=length) for length in (0, 5, -1)},
    **{f"mode {mode:o}": partial(plant, mode=mode) for mode in (0o666, 0o664, 0o602)},
    "another user's": give_away,
    "a link": link,
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_what_is_cut_short_or_may_be_anothers_is_compiled_again_or_not_used(machine, harm):
    compiler = machine.install()
    library = machine.library()
    whole = library.read_bytes()
    harm(library)
    assert machine.library() == library and not library.is_symlink()
    facts = library.stat()
    assert library.read_bytes() == whole and facts.st_mode & 0o022 == 0
    assert facts.st_uid == os.geteuid()
    harm(library)
    compiler.unlink()
    assert "no C compiler was found" in machine.reason(), "it is not run for want of another"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_folder_of_another_user_is_not_used(machine):
    machine.install()
    os.chown(machine.library().parent, 12345, 12345)
    assert machine.library().parent == machine.private


@pytest.mark.parametrize("what", ["kernels", "cache", "above"])
def test_a_folder_that_others_can_write_is_not_used_and_the_remedy_is_said(machine, caplog, what):
    machine.install()
    machine.monkeypatch.setenv("SMARTSPEC_CACHE", str(machine.cache / "mine"))
    library = machine.library()
    folder = {"kernels": library.parent, "cache": library.parents[1], "above": machine.cache}[what]
    folder.chmod(0o777)
    made = machine.library()
    assert made.parent == machine.private and machine.private.stat().st_mode & 0o077 == 0
    assert f"{folder} can be written by others (mode 777)" in caplog.text
    assert "chmod go-w" in caplog.text and "SMARTSPEC_CACHE" in caplog.text
    folder.chmod(0o1777 if what == "above" else 0o755)
    caplog.clear()
    assert machine.library() == library and not caplog.records, "a sticky folder is as good as /tmp"


def test_where_no_folder_is_this_users_alone_there_are_no_kernels(machine):
    machine.install()
    machine.library().parent.chmod(0o775)
    machine.private.mkdir(mode=0o700)
    machine.private.chmod(0o733)
    assert "compiled kernels could be of another user" in machine.reason()
    assert "chmod go-w" in machine.reason() and "SMARTSPEC_CACHE" in machine.reason()


def test_what_is_written_under_a_loose_umask_is_used_again(machine):
    compiler, mask = machine.install(), os.umask(0o002)
    try:
        library = machine.library()
    finally:
        os.umask(mask)
    compiler.unlink()
    assert machine.library() == library
