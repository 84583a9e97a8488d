"""The time of one pass of a language model on known hardware, from first principles.

A roofline (Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785): every component of
a pass takes the longer of its arithmetic and its memory traffic, plus the part of the shorter one
that does not overlap with it. Components follow each other, and every layer adds a fixed time for
starting its kernels. Tensor parallelism divides weights, KV and arithmetic by the number of
devices. It adds two ring all-reduces per layer (arXiv 1909.08053, section 3). Each moves 2 (n - 1)
/ n of the activations over the link. Everything is 16 bits wide.

What a device reaches of its data sheet is assumed, except for the H100: there it is fitted to steps
of vLLM 0.33, of Llama-3.1-8B's shape alone and with an EAGLE-3 head (docs/results/h100.jsonl, see
MEASURED). Published fits of older engines take longer: tests/sim/test_world_hardware.py says how
much.

Accelerators: vendors' data sheets (NVIDIA A100 80GB SXM, H100 SXM, H200 SXM, HGX B200, L40S, A40,
L4; dense bfloat16, per device; links in one direction, half of the advertised sum; memory in units
of 1e9 bytes). Model shapes: the config.json published with each model (of deepseek-moe-16b the
first layer, which is dense, is taken for one like the others); EAGLE heads: arXiv 2401.15077 (one
layer, a matrix that joins features and embedding, the target's own vocabulary matrix);
eagle3-llama-3.1-8b with its draft vocabulary of 32,000.
"""

from dataclasses import dataclass

import numpy as np

BYTES_PER_VALUE = 2
GRAPH_SIZES = (1, 2, 4, *range(8, 513, 8))
MEMORY_SHARE = 0.9  # of the devices' memory, for weights and KV


@dataclass(frozen=True)
class Accelerator:
    """One device."""

    flops: float  # dense bfloat16 operations per second
    bandwidth: float  # bytes per second of its memory
    memory: float  # bytes
    link: float  # bytes per second to the other devices, in one direction


ACCELERATORS = {
    "a100-80g": Accelerator(312e12, 2.039e12, 80e9, 300e9),
    "h100": Accelerator(989e12, 3.35e12, 80e9, 450e9),
    "h200": Accelerator(989e12, 4.8e12, 141e9, 450e9),
    "b200": Accelerator(2250e12, 8.0e12, 180e9, 900e9),
    "l40s": Accelerator(362e12, 864e9, 48e9, 32e9),
    "a40": Accelerator(149.7e12, 696e9, 48e9, 32e9),
    "l4": Accelerator(121e12, 300e9, 24e9, 32e9),
}
# Fields of Roofline where they are measured: least mean |log error| over 50 kinds of steps in which
# the GPU, not the host, was waited for (1 to 128 requests, 0 to 5 draft tokens). Steps of 1 to 128
# tokens come out 4 % low to 2 % high. An H200 is the same chip with faster memory. No other device
# was measured: an A100 is known to reach more of its peak arithmetic, so the figures are not
# carried over.
_H100 = {
    "compute_efficiency": 0.62,
    "bandwidth_efficiency": 0.95,
    "overlap": 0.75,
    "layer_seconds": 64e-6,
}
MEASURED = {"h100": _H100, "h200": _H100}


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer with grouped-query attention and a gated MLP, or a mixture of
    experts."""

    layers: int
    hidden: int
    intermediate: int  # of the MLP that every token goes through, 0 for none
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    # vocabulary matrices of its own in memory: 2, 1 where embedding and head are tied, 0 for a head
    # that borrows the target's
    stored_vocabularies: int = 2
    joining_weights: int = 0  # weights of an EAGLE head's input matrix
    # experts, experts_per_token, expert_intermediate: of a mixture; each token goes through a few
    # of the experts, and a pass reads those that any of its tokens needs
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of all layers that every token goes through."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return (
            self.layers * (attention + 3 * self.hidden * self.intermediate) + self.joining_weights
        )

    @property
    def expert_weights(self) -> int:
        """Weights of one expert of each layer."""
        return 3 * self.layers * self.hidden * self.expert_intermediate

    def distinct_experts(self, tokens: np.ndarray | float) -> np.ndarray | float:
        """Experts of a layer that a pass over so many tokens reads, in the mean over independent
        and even routing: E (1 - (1 - k/E)^n)."""
        return self.experts * (
            1.0 - (1.0 - self.experts_per_token / max(self.experts, 1)) ** tokens
        )

    @property
    def head_weights(self) -> int:
        """Weights of the matrix that makes logits."""
        return self.hidden * self.vocabulary

    @property
    def stored_weights(self) -> int:
        """Weights that take memory."""
        experts = self.experts * self.expert_weights
        return self.layer_weights + experts + self.stored_vocabularies * self.head_weights

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_PER_VALUE


MODEL_SHAPES = {
    "llama-3.1-8b": ModelShape(32, 4096, 14336, 32, 8, 128, 128256),
    "llama-3.1-70b": ModelShape(80, 8192, 28672, 64, 8, 128, 128256),
    "llama-3.2-1b": ModelShape(16, 2048, 8192, 32, 8, 64, 128256, stored_vocabularies=1),
    "qwen-2.5-7b": ModelShape(28, 3584, 18944, 28, 4, 128, 152064),
    "qwen-2.5-32b": ModelShape(64, 5120, 27648, 40, 8, 128, 152064),
    "qwen-2.5-0.5b": ModelShape(24, 896, 4864, 14, 2, 64, 151936, stored_vocabularies=1),
    "vicuna-7b": ModelShape(32, 4096, 11008, 32, 32, 128, 32000),
    "vicuna-33b": ModelShape(60, 6656, 17920, 52, 52, 128, 32000),
    "vicuna-160m": ModelShape(12, 768, 3072, 12, 12, 64, 32000),
    "llama-2-7b": ModelShape(32, 4096, 11008, 32, 32, 128, 32000),
    "llama-2-70b": ModelShape(80, 8192, 28672, 64, 8, 128, 32000),
    "mistral-7b": ModelShape(32, 4096, 14336, 32, 8, 128, 32000),
    "mixtral-8x7b": ModelShape(
        32, 4096, 0, 32, 8, 128, 32000, experts=8, experts_per_token=2, expert_intermediate=14336
    ),
    "qwen-3-30b-a3b": ModelShape(
        48, 2048, 0, 32, 4, 128, 151936, experts=128, experts_per_token=8, expert_intermediate=768
    ),
    "deepseek-moe-16b": ModelShape(
        28,
        2048,
        2 * 1408,
        16,
        16,
        128,
        102400,
        experts=64,
        experts_per_token=6,
        expert_intermediate=1408,
    ),
    "eagle-qwen-3-30b-a3b": ModelShape(
        1, 2048, 6144, 32, 4, 128, 151936, 0, joining_weights=2 * 2048**2
    ),
    "eagle-vicuna-7b": ModelShape(
        1, 4096, 11008, 32, 32, 128, 32000, 0, joining_weights=2 * 4096**2
    ),
    "eagle-llama-3.1-8b": ModelShape(
        1, 4096, 14336, 32, 8, 128, 128256, 0, joining_weights=2 * 4096**2
    ),
    "eagle3-llama-3.1-8b": ModelShape(
        1, 4096, 14336, 32, 8, 128, 32000, 0, joining_weights=2 * 4096**2
    ),
    "eagle-llama-3.1-70b": ModelShape(
        1, 8192, 28672, 64, 8, 128, 128256, 0, joining_weights=2 * 8192**2
    ),
}


@dataclass(frozen=True)
class Roofline:
    """Pass times of a model on num_devices accelerators, as GroundTruthTime wants them. Defaults
    are assumed; roofline() takes what is MEASURED."""

    accelerator: Accelerator
    model: ModelShape
    num_devices: int = 1
    # fed tokens are padded to the next of these, if any, as engines with captured graphs do; larger
    # passes are not, nor are attention and logits
    graph_sizes: tuple[int, ...] = ()
    # compute_efficiency, bandwidth_efficiency, link_efficiency: reachable share of the data sheet's
    # figures
    compute_efficiency: float = 0.75
    bandwidth_efficiency: float = 0.8
    link_efficiency: float = 0.8
    # share of the shorter of arithmetic and traffic that is hidden by the longer
    overlap: float = 0.5
    # starting the kernels of a layer, and its part of what a step does outside layers
    layer_seconds: float = 40e-6
    all_reduce_seconds: float = 10e-6  # latency of one all-reduce

    def __post_init__(self):
        if self.num_devices < 1 or self.model.heads % self.num_devices:
            raise ValueError(
                f"num_devices is {self.num_devices}: use a divisor of the {self.model.heads} heads"
            )

    def seconds(
        self,
        fed_tokens: np.ndarray | float,
        context_tokens: np.ndarray | float,
        rows: np.ndarray | float,
        attended_tokens: np.ndarray | float | None = None,
        scored_tokens: np.ndarray | float | None = None,
    ) -> np.ndarray:
        """Seconds of passes of these sizes (broadcast); arguments and defaults as in
        CostCurve.seconds."""
        fed = np.asarray(fed_tokens, dtype=float)
        rows = np.maximum(rows, 1)
        if attended_tokens is None:
            attended_tokens = fed * np.maximum(context_tokens / rows - (fed / rows - 1) / 2, 0)
        scored = fed if scored_tokens is None else scored_tokens
        padded = self._padded(fed)
        return (
            self.model.layers * self.layer_seconds
            + self._matrix_seconds(self.model.layer_weights, self._activation_bytes, padded)
            + self._expert_seconds(padded)
            + self._matrix_seconds(self.model.head_weights, 4 * self.model.vocabulary, scored)
            + self._attention_seconds(context_tokens, attended_tokens)
            + self.all_reduce_seconds_of(padded)
        )

    @property
    def held_weights(self) -> float:
        """Weights that take memory on the devices, on all together."""
        return self.model.stored_weights

    @property
    def _activation_bytes(self) -> float:
        """Bytes a token writes and reads between kernels: four of each width per layer (norm,
        rotation, gate, sum)."""
        model = self.model
        inner = model.intermediate + model.experts_per_token * model.expert_intermediate
        widths = 2 * model.hidden + (model.heads + 2 * model.kv_heads) * model.head_dim + 2 * inner
        return 4 * model.layers * widths * BYTES_PER_VALUE

    def _matrix_seconds(
        self, weights: int, bytes_per_token: float, tokens: np.ndarray
    ) -> np.ndarray:
        return self._component_seconds(
            2 * weights * tokens, weights * BYTES_PER_VALUE + bytes_per_token * tokens
        )

    def _expert_seconds(self, tokens: np.ndarray) -> np.ndarray | float:
        """Every token is computed by a few experts, and every expert that one of them needs is
        read."""
        model = self.model
        if not model.experts:
            return 0.0
        flops = 2 * model.expert_weights * model.experts_per_token * tokens
        return self._component_seconds(
            flops, model.expert_weights * model.distinct_experts(tokens) * BYTES_PER_VALUE
        )

    def _attention_seconds(
        self, context_tokens: np.ndarray | float, attended_tokens: np.ndarray | float
    ) -> np.ndarray:
        """The KV of every sequence is read once; scores and weighted sums take 4 operations per
        head value."""
        model = self.model
        # devices beyond the KV heads hold copies
        replicas = max(1, self.num_devices / model.kv_heads)
        flops = (
            4
            * model.layers
            * model.heads
            * model.head_dim
            * np.asarray(attended_tokens, dtype=float)
        )
        return self._component_seconds(flops, model.kv_bytes_per_token * replicas * context_tokens)

    def _component_seconds(self, flops: np.ndarray, num_bytes: np.ndarray) -> np.ndarray:
        compute = flops / (self.num_devices * self.accelerator.flops * self.compute_efficiency)
        memory = num_bytes / (
            self.num_devices * self.accelerator.bandwidth * self.bandwidth_efficiency
        )
        return np.maximum(compute, memory) + (1.0 - self.overlap) * np.minimum(compute, memory)

    def all_reduce_seconds_of(self, tokens: np.ndarray) -> np.ndarray | float:
        """Seconds of all all-reduces of a pass over so many tokens."""
        if self.num_devices == 1:
            return 0.0
        share = 2 * (self.num_devices - 1) / self.num_devices
        num_bytes = share * tokens * self.model.hidden * BYTES_PER_VALUE
        transfer = num_bytes / (self.accelerator.link * self.link_efficiency)
        return 2 * self.model.layers * (self.all_reduce_seconds + transfer)

    def _padded(self, fed: np.ndarray) -> np.ndarray:
        if not self.graph_sizes:
            return fed
        sizes = np.append(np.asarray(self.graph_sizes, dtype=float), np.inf)
        padded = sizes[np.searchsorted(sizes, fed)]
        return np.where(np.isinf(padded), fed, padded)


def roofline(
    accelerator: str, model: str, num_devices: int = 1, graph_sizes: tuple[int, ...] = ()
) -> Roofline:
    """The roofline of a named model on named accelerators. ValueError names what there is."""
    if accelerator not in ACCELERATORS:
        raise ValueError(
            f"unknown accelerator {accelerator!r}: use one of {', '.join(ACCELERATORS)}"
        )
    if model not in MODEL_SHAPES:
        raise ValueError(f"unknown model shape {model!r}: use one of {', '.join(MODEL_SHAPES)}")
    reached = MEASURED.get(accelerator, {})
    return Roofline(
        ACCELERATORS[accelerator], MODEL_SHAPES[model], num_devices, graph_sizes, **reached
    )


def kv_token_capacity(target: Roofline, draft: Roofline | None = None) -> int:
    """Tokens whose KV fits beside the weights into MEMORY_SHARE of the target's devices; the draft
    model's too.

    A draft model on fewer devices takes as much of the others as of its own: theirs is of no use,
    as KV is spread evenly. ValueError if the weights alone do not fit.
    """
    models = [target] if draft is None else [target, draft]
    weights = (
        sum(m.held_weights * target.num_devices / m.num_devices for m in models) * BYTES_PER_VALUE
    )
    room = MEMORY_SHARE * target.accelerator.memory * target.num_devices - weights
    # Devices beyond the KV heads hold copies.
    per_token = sum(
        m.model.kv_bytes_per_token
        * max(1, m.num_devices / m.model.kv_heads)
        * target.num_devices
        / m.num_devices
        for m in models
    )
    if room < per_token:
        raise ValueError(
            f"{weights / 1e9:.0f} GB of weights do not fit into {MEMORY_SHARE:.0%} of "
            f"{target.num_devices} x {target.accelerator.memory / 1e9:.0f} GB: use more devices"
        )
    return int(room / per_token)
