"""Models on GPUs and their drafters, by name. Shapes and data sheets are the simulator's."""

from dataclasses import dataclass

from lib.emulated_gpu.step_time import PIECEWISE_LAYER_SECONDS, GPUTime
from smartspec.sim.world.hardware import Roofline, kv_token_capacity, roofline

BLOCK_SIZE = 16  # tokens of a KV block, vLLM's default on GPUs


@dataclass(frozen=True)
class Setup:
    """model: a shape of the simulator. head: shape of its drafter with one layer. small: shape of a draft model."""

    accelerator: str
    devices: int
    model: str
    head: str
    small: str

    def roofline(self, model: str) -> Roofline:
        return roofline(self.accelerator, model, self.devices)


SETUPS = {
    "8b-h100": Setup("h100", 1, "llama-3.1-8b", "eagle-llama-3.1-8b", "llama-3.2-1b"),
    "70b-4xh100": Setup("h100", 4, "llama-3.1-70b", "eagle-llama-3.1-70b", "llama-3.1-8b"),
    "70b-8xh100": Setup("h100", 8, "llama-3.1-70b", "eagle-llama-3.1-70b", "llama-3.1-8b"),
}
# vLLM's method of each drafter, without and with asynchronous scheduling, which vLLM refuses for ngram on the CPU.
METHODS = {
    "eagle3": ("eagle3", "eagle3"),
    "mtp": ("mtp", "mtp"),
    "dflash": ("dflash", "dflash"),
    "draft_model": ("draft_model", "draft_model"),
    "ngram": ("ngram", "ngram_gpu"),
}
MODEL_FREE = ("ngram",)


def gpu_time(setup: Setup, drafter: str | None) -> GPUTime:
    """drafter: None for vLLM without speculation."""
    target = setup.roofline(setup.model)
    piecewise = target.model.layers * PIECEWISE_LAYER_SECONDS
    if drafter is None or drafter in MODEL_FREE:
        return GPUTime(target, piecewise=piecewise)
    draft = setup.roofline(setup.small if drafter == "draft_model" else setup.head)
    return GPUTime(target, draft, drafts_in_one_pass=drafter == "dflash", piecewise=piecewise)


def num_kv_blocks(setup: Setup, drafter: str | None) -> int:
    """Blocks that fit beside the weights."""
    target, draft = setup.roofline(setup.model), gpu_time(setup, drafter).draft
    return kv_token_capacity(target, draft) // BLOCK_SIZE
