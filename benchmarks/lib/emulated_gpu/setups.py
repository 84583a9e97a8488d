"""Models on GPUs and their drafters, by name. Shapes and data sheets are the simulator's."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from lib.emulated_gpu.step_time import GPUTime
from smartspec.control import LatencyModel
from smartspec.sim.world.hardware import Roofline, kv_token_capacity, roofline

BLOCK_SIZE = 16  # tokens of a KV block, vLLM's default on GPUs
PROFILE_KV_BLOCKS = 32_768


# What starting the kernels of a layer one by one adds to a pass without a full graph. Dense:
# Qwen2.5-1.5B took 0.7 ms longer for its 28 layers (vLLM pull requests 16072, 20059). Experts:
# Qwen3-30B-A3B on an H100 took 5.6 ms longer for its 48 (25444: 4.29 and 6.20 requests per second,
# ten at a time, 128 tokens each).
DENSE_LAYER, EXPERTS_LAYER = 25e-6, 117e-6


@dataclass(frozen=True)
class Fit:
    """What a roofline of one GPU is fitted to measured steps with, see sim/world/hardware.py. The
    layers of a drafter start within one captured graph. piecewise: seconds per layer of a pass
    outside full graphs."""

    compute_efficiency: float
    bandwidth_efficiency: float
    overlap: float
    layer_seconds: float
    drafter_layer_seconds: float
    piecewise: float


# Llama-3.1-8B's shape on an H100, vLLM 0.33: 30 cells of docs/results/h100.jsonl (off, and EAGLE-3
# of four lengths).
H100_8B = Fit(0.61, 0.95, 1.0, 56.5e-6, 2e-6, 48.5e-6)


@dataclass(frozen=True)
class Setup:
    """model: a shape of the simulator. head: shape of its drafter with one layer. small: shape of a
    draft model. piecewise: seconds per layer that a pass takes longer without a full graph. fit: to
    measured steps, if there are any."""

    accelerator: str
    devices: int
    model: str
    head: str
    small: str
    piecewise: float = DENSE_LAYER
    fit: Fit | None = None

    is_measured = False

    def gpu_time(self, drafter: str | None) -> GPUTime:
        """drafter: None for vLLM without speculation."""
        target = self._roofline(self.model)
        piecewise = target.model.layers * (
            self.piecewise if self.fit is None else self.fit.piecewise
        )
        if drafter is None or not DRAFTERS[drafter].has_passes:
            return GPUTime(target, piecewise=piecewise)
        draft = self._roofline(
            self.small if drafter == "draft_model" else self.head, is_drafter=True
        )
        return GPUTime(target, draft, DRAFTERS[drafter].in_one_pass, piecewise)

    def num_kv_blocks(self, drafter: str | None) -> int:
        """Blocks that fit beside the weights."""
        draft = self.gpu_time(drafter).draft
        return kv_token_capacity(self._roofline(self.model), draft) // BLOCK_SIZE

    def _roofline(self, model: str, is_drafter: bool = False) -> Roofline:
        plain, fit = roofline(self.accelerator, model, self.devices), self.fit
        if fit is None:
            return plain
        return replace(
            plain,
            compute_efficiency=fit.compute_efficiency,
            bandwidth_efficiency=fit.bandwidth_efficiency,
            overlap=fit.overlap,
            layer_seconds=fit.drafter_layer_seconds if is_drafter else fit.layer_seconds,
        )


@dataclass(frozen=True)
class Profile:
    """Times that the plugin has measured and kept: a file of its cache, or LatencyModel.to_dict()
    as JSON. They are those of whole steps, from completion to completion."""

    path: Path

    # vLLM wants a configuration of models, and reads nothing of it that matters here.
    model, head, small = "llama-3.1-8b", "eagle-llama-3.1-8b", "llama-3.2-1b"
    is_measured = True

    def gpu_time(self, drafter: str | None) -> GPUTime:
        """ValueError if the file is no profile, or has no cost of draft passes that the drafter
        needs."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            latency = LatencyModel.from_dict(data.get("cost_model", data))
        except (OSError, ValueError, AttributeError) as error:
            raise ValueError(f"{self.path} is no file of step times ({error})") from error
        if drafter is None or not DRAFTERS[drafter].has_passes:
            return GPUTime(latency.target)
        if not latency.drafts or latency.drafts[0] is None:
            raise ValueError(
                f"{self.path} has no cost of draft passes, which {drafter} makes: use ngram"
            )
        return GPUTime(latency.target, latency.drafts[0], DRAFTERS[drafter].in_one_pass)

    def num_kv_blocks(self, drafter: str | None) -> int:
        """Enough for all requests."""
        return PROFILE_KV_BLOCKS


SETUPS = {
    "8b-h100": Setup("h100", 1, "llama-3.1-8b", "eagle-llama-3.1-8b", "llama-3.2-1b", fit=H100_8B),
    "70b-4xh100": Setup("h100", 4, "llama-3.1-70b", "eagle-llama-3.1-70b", "llama-3.1-8b"),
    "70b-8xh100": Setup("h100", 8, "llama-3.1-70b", "eagle-llama-3.1-70b", "llama-3.1-8b"),
    "moe-h100": Setup(
        "h100", 1, "qwen-3-30b-a3b", "eagle-qwen-3-30b-a3b", "qwen-2.5-0.5b", EXPERTS_LAYER
    ),
}


@dataclass(frozen=True)
class Drafter:
    """method: vLLM's, without and with asynchronous scheduling, which vLLM refuses for lookup on
    the host. acceptance: as `simulate --acceptance`, unless told otherwise. found_share: of
    positions with a draft. in_scheduler: SmartSpec's scheduler drafts, from recorded texts, without
    asynchronous scheduling (docs/vllm-how.md)."""

    method: tuple[str, str]
    acceptance: str = "eagle3"
    found_share: float = 1.0
    has_passes: bool = True
    in_one_pass: bool = False
    in_scheduler: bool = False


DRAFTERS = {
    "eagle3": Drafter(("eagle3", "eagle3")),
    "mtp": Drafter(("mtp", "mtp"), "eagle1"),  # one layer for all depths: falls faster
    "dflash": Drafter(("dflash", "dflash"), in_one_pass=True),
    "draft_model": Drafter(("draft_model", "draft_model"), "0.75/8/2"),
    "ngram": Drafter(("ngram", "ngram_gpu"), "0.7/8/2", found_share=0.4, has_passes=False),
    "scheduler": Drafter(("custom_class", "custom_class"), has_passes=False, in_scheduler=True),
}


def setup_of(name: str) -> Setup | Profile:
    """By name, or by the path of a profile. ValueError names what there is."""
    if name.endswith(".json"):
        return Profile(Path(name))
    if name not in SETUPS:
        raise ValueError(
            f"unknown setup {name!r}: use one of {', '.join(SETUPS)}, or a JSON file of step times"
        )
    return SETUPS[name]
