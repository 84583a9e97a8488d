"""llama.cpp's own server on a GGUF file, for `benchmarks/peers.py`.

    python benchmarks/llama_cpp_server.py FILE PORT SLOTS

Needs `pip install xllamacpp`, which nothing else here does. As many requests run at once as there are slots, each with
as much context; threads are those of OMP_NUM_THREADS, else all cores.
"""

import os
import sys
import time

import xllamacpp

CONTEXT_PER_SLOT = 2048


def main(path: str, port: int, num_slots: int) -> None:
    """Serve until the process ends."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.port = port
    params.n_parallel = num_slots
    params.n_ctx = num_slots * CONTEXT_PER_SLOT
    params.cpuparams.n_threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    server = xllamacpp.Server(params)
    print(f"llama.cpp at {server.listening_address}", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
