"""Other machines than accelerators that hold their model, and other ways to draft, by name.

`--host papi` and `--drafting parallel` of `smartspec simulate` find them here wherever Python finds
the folder lab/. A host is a hardware.Roofline that computes one part of a pass in another way. Its
parameters are fields, with their sources.
"""

from lab.worlds.expert_parallel import ExpertParallel, SpeculativeMoe
from lab.worlds.layer_parallel import LayerParallel
from lab.worlds.memory_side import MemorySide, NearMemory
from lab.worlds.offloaded_experts import OffloadedExperts, PrefetchedExperts
from lab.worlds.parallel import ParallelExecutor
from lab.worlds.sequence_parallel import SequenceParallel
from lab.worlds.speculated_blocks import BlockChain, SpeculatedBlocks
from smartspec.sim.world.hardware import Roofline

HOSTS: dict[str, type[Roofline]] = {
    "memory-side": MemorySide,
    "papi": NearMemory,
    "offloaded-experts": OffloadedExperts,
    "prefetched-experts": PrefetchedExperts,
    "expert-parallel": ExpertParallel,
    "speculative-moe": SpeculativeMoe,
    "loongserve": SequenceParallel,
    "block-chain": BlockChain,
    "blockllm": SpeculatedBlocks,
}
# The executor whose draft model runs beside the target, and the times of passes whose layers run
# side by side.
DRAFTINGS = {"parallel": ParallelExecutor, "layer-parallel": LayerParallel}
