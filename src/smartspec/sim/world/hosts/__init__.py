"""Other machines than accelerators that hold their model: small cost models of the target's pass, by name.

Each is a hardware.Roofline that computes one part of a pass in another way. Their parameters are fields, with their
sources.
"""

from dataclasses import fields

from smartspec.sim.world.hardware import Roofline
from smartspec.sim.world.hosts.expert_parallel import ExpertParallel, SpeculativeMoe
from smartspec.sim.world.hosts.memory_side import MemorySide, NearMemory
from smartspec.sim.world.hosts.offloaded_experts import OffloadedExperts, PrefetchedExperts
from smartspec.sim.world.hosts.sequence_parallel import SequenceParallel
from smartspec.sim.world.hosts.speculated_blocks import BlockChain, SpeculatedBlocks

HOSTS: dict[str, type[Roofline]] = {
    "plain": Roofline,
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


def on_host(name: str, plain: Roofline) -> Roofline:
    """The same model and devices on the host of that name. ValueError names what there is, or what does not fit."""
    if name not in HOSTS:
        raise ValueError(f"unknown host {name!r}: use one of {', '.join(HOSTS)}")
    return HOSTS[name](**{field.name: getattr(plain, field.name) for field in fields(Roofline)})
