"""Runs in vLLM's environment: measures cells, one after the other. benchmarks/vllm_gpu.py calls it.

    python -m lib.emulated_gpu.worker JOB       # in benchmarks/

JOB names a JSON file: the records' file, and jobs of a cell and the table of Dynamic SD for it.
"""

import json
import os
import sys
import time
from pathlib import Path

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "NUMBA_THREADING_LAYER": "workqueue",
}


def main(job_path: Path) -> None:
    os.environ.update(ENVIRONMENT)
    from lib.emulated_gpu.cells import Cell, Records
    from lib.emulated_gpu.measure import measure

    job = json.loads(job_path.read_text())
    records = Records(Path(job["records"]))
    for number, one in enumerate(job["jobs"], start=1):
        cell = Cell(**one["cell"])
        figures = measure(cell, job_path.parent, one["table"])
        records.add(cell, figures)
        print(
            f"{time.strftime('%H:%M:%S')} {number} of {len(job['jobs'])}, {cell.name}: "
            f"{figures['tokens_per_second']:.0f} tokens/s, idle {100 * figures['idle']:.1f} %, "
            f"graphs {100 * figures['graphs']:.0f} %, {figures['seconds']:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
