"""llama.cpp's own server on a GGUF file, for `benchmarks/peers.py`.

    python benchmarks/lib/llama_cpp_server.py FILE PORT SLOTS

Needs `pip install xllamacpp`, which nothing else here does. As many requests run at once as there
are slots, each with as much context; threads are those of OMP_NUM_THREADS, else all cores.
"""

import os
import time
from pathlib import Path

import typer

CONTEXT_PER_SLOT = 2048


def main(file: Path, port: int, slots: int) -> None:
    """Serve a GGUF file until the process ends."""
    import xllamacpp  # optional; --help works without it

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.port = port
    params.n_parallel = slots
    params.n_ctx = slots * CONTEXT_PER_SLOT
    params.cpuparams.n_threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    server = xllamacpp.Server(params)
    print(f"llama.cpp at {server.listening_address}", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    typer.run(main)
