"""Where speculation meets the machine: the best draft length and the time of a pass on each host of
the simulator."""

from collections.abc import Iterable

from lib.mixtures import CONTEXT_TOKENS, best_length
from smartspec.sim.world.hardware import Roofline, roofline
from smartspec.sim.world.hosts import on_host

PADDED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
LONG_PROMPT = 32768
MACHINES = (
    (
        "llama-3.1-8b",
        "h100",
        1,
        ("plain", "padded", "memory-side", "papi", "block-chain", "blockllm"),
    ),
    ("llama-3.1-8b", "h100", 8, ("plain", "loongserve")),
    ("qwen-3-30b-a3b", "h100", 1, ("plain", "offloaded-experts", "prefetched-experts")),
    ("mixtral-8x7b", "l40s", 8, ("plain", "expert-parallel", "speculative-moe")),
)


def rows_of(acceptance: float, max_length: int, sizes: Iterable[int]) -> list[dict]:
    """A row for each machine and host: by number of requests, the best length of free drafts and
    milliseconds of a pass without drafts; milliseconds of the prefill of a long prompt."""
    sizes, rows = list(sizes), []
    for model, accelerator, devices, names in MACHINES:
        for name in names:
            target = _target(name, accelerator, model, devices)
            passes = {
                size: 1000 * float(target.seconds(size, size * (CONTEXT_TOKENS + 1), size))
                for size in sizes
            }
            machine = f"{devices} x {accelerator}"
            best = {size: best_length(target, size, acceptance, max_length) for size in sizes}
            prefill = 1000 * float(target.seconds(LONG_PROMPT, LONG_PROMPT, 1, None, 1))
            rows.append({"model": model, "machine": machine, "host": name, "best": best})
            rows[-1] |= {"pass_ms": passes, "prefill_ms": prefill}
    return rows


def _target(name: str, accelerator: str, model: str, devices: int) -> Roofline:
    """The host of that name; padded: plain, with passes padded to powers of two."""
    if name == "padded":
        return roofline(accelerator, model, devices, PADDED)
    return on_host(name, roofline(accelerator, model, devices))
