"""What the paper serves and on what: pairs of models, devices and data (arXiv 2406.14066); how
long, and how often.

The full text was not at hand. What stands in the authors' scripts is marked published, what is from
memory recalled. Lengths of texts and acceptance are assumed, everywhere: no source has them by
cell.
"""

from dataclasses import dataclass

NO_DRAFTER = "off, no drafter loaded"
PUBLISHED, RECALLED = "in the authors' scripts", "recalled, unverified"
CHOSEN, DEAR_KV = (
    "chosen for its low acceptance",
    "chosen for the draft model's KV, most of the memory",
)
FIXED = ("fixed:1", "fixed:3", "fixed:5", "fixed:7")
POLICIES = ("off", *FIXED, "goodput", "smartspec-paper")
# Trees have no one length: the fixed ones are EAGLE-2's of that many nodes, of depth by confidence.
FIXED_TREES = ("fixed:3", "eagle2:8", "eagle2:16", "eagle2:32")
TREE_POLICIES = ("off", *FIXED_TREES, "goodput", "smartspec-paper")


@dataclass(frozen=True)
class Cell:
    """One plot of latency against rate. style: how drafts are made. scenario: fields of
    sim.scenario.Scenario. source: of pair, devices, data."""

    name: str
    style: str
    scenario: dict
    source: str
    policies: tuple[str, ...] = POLICIES

    def scenario_of(self, policy: str) -> dict:
        """The fields of a run of that policy. NO_DRAFTER has the memory that the draft model's
        weights and KV take."""
        if policy != NO_DRAFTER:
            return self.scenario | {"policy": policy}
        of_drafter = ("drafter", "draft_model", "draft_tensor_parallel")
        kept = {name: value for name, value in self.scenario.items() if name not in of_drafter}
        return kept | {"drafter": "lookup", "policy": "off"}


@dataclass(frozen=True)
class LiveEffort:
    """How much is measured on the embedded engine. shares: the rates, in what `off` can serve.
    seconds: of arrivals, half as many at each of the rate steps. batch: requests at once of the
    measurement of what off can serve. concurrency, max_tokens: sizes of batch and longest answers
    of the figures of lengths and predictions."""

    shares: tuple[float, ...]
    seconds: float
    repetitions: int
    batch: int
    concurrency: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True)
class Effort:
    """How much is measured. seconds: of arrivals of a point. seeds: of arrivals and all that is
    random. shares: the rates, in what `off` can serve. num_requests: of the measurement of that,
    over twice a full batch. num_steps: of a steady batch. policies: only these, None for all."""

    seconds: float
    seeds: tuple[int, ...]
    shares: tuple[float, ...]
    num_requests: int
    num_steps: int
    live: LiveEffort
    policies: tuple[str, ...] | None = None

    def policies_of(self, cell: Cell) -> tuple[str, ...]:
        return tuple(
            name for name in cell.policies if self.policies is None or name in self.policies
        )


FULL = Effort(
    seconds=120.0,
    seeds=(0, 1, 2),
    shares=(0.6, 0.8, 1.0, 1.2),
    num_requests=2048,
    num_steps=400,
    live=LiveEffort(
        (0.6, 0.9, 1.2), 15.0, repetitions=5, batch=16, concurrency=(1, 2, 4, 8, 16), max_tokens=96
    ),
)
QUICK = Effort(
    seconds=10.0,
    seeds=(0,),
    shares=(0.9, 1.2),
    num_requests=768,
    num_steps=100,
    live=LiveEffort((1.2,), 3.0, repetitions=1, batch=4, concurrency=(1, 4), max_tokens=16),
    policies=("off", "fixed:1", "fixed:3", "goodput"),
)

# What no pass hides of a step: vLLM 0.33, which schedules ahead, runs as fast on an H100
# (docs/results/h100.jsonl).
HOST_SECONDS = 0.0003


def _texts(prompt_tokens: int, output_tokens: int, acceptance: str, **more: float) -> dict:
    return {
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "acceptance": acceptance,
        **more,
    }


def _on(hardware: str, tensor_parallel: int, model: str, drafter: str, **more: str | int) -> dict:
    devices = {
        "hardware": hardware,
        "tensor_parallel": tensor_parallel,
        "host_seconds": HOST_SECONDS,
    }
    return {**devices, "model": model, "drafter": drafter, **more}


CHAT, SUMMARIES = (200, 250), (900, 100)
DRAFT_MODEL, LOOKUP, HEAD, TREE = "draft model", "prompt lookup", "head", "tree"
CELLS = (
    Cell(
        "Llama-3.1-8B + 1B, acceptance 0.4, H100",
        DRAFT_MODEL,
        _on("h100", 1, "llama-3.1-8b", "model", draft_model="llama-3.2-1b") | _texts(*CHAT, "0.4"),
        CHOSEN,
    ),
    Cell(
        "Vicuna-7B + 160M, chat, A100",
        DRAFT_MODEL,
        _on("a100-80g", 1, "vicuna-7b", "model", draft_model="vicuna-160m")
        | _texts(*CHAT, "0.6/8/2"),
        PUBLISHED,
    ),
    Cell(
        "Vicuna-7B + 160M, text-to-SQL, A100",
        DRAFT_MODEL,
        _on("a100-80g", 1, "vicuna-7b", "model", draft_model="vicuna-160m")
        | _texts(600, 60, "0.8/8/2"),
        RECALLED,
    ),
    Cell(
        "Vicuna-33B + 160M, chat, 4 A100",
        DRAFT_MODEL,
        _on(
            "a100-80g", 4, "vicuna-33b", "model", draft_model="vicuna-160m", draft_tensor_parallel=1
        )
        | _texts(*CHAT, "0.6/8/2"),
        RECALLED,
    ),
    Cell(
        "Llama-2-70B + 7B, chat, 4 A100",
        DRAFT_MODEL,
        _on("a100-80g", 4, "llama-2-70b", "model", draft_model="llama-2-7b")
        | _texts(*CHAT, "0.8/8/2"),
        RECALLED,
    ),
    Cell(
        "Llama-2-70B + 7B, long prompts, 4 A100",
        DRAFT_MODEL,
        _on("a100-80g", 4, "llama-2-70b", "model", draft_model="llama-2-7b")
        | _texts(2000, 200, "0.8/8/2"),
        DEAR_KV,
    ),
    Cell(
        "Llama-3.1-70B + 1B, chat, 4 H100",
        DRAFT_MODEL,
        _on(
            "h100", 4, "llama-3.1-70b", "model", draft_model="llama-3.2-1b", draft_tensor_parallel=1
        )
        | _texts(*CHAT, "0.7/8/2"),
        PUBLISHED,
    ),
    Cell(
        "Vicuna-7B, lookup, summaries, A100",
        LOOKUP,
        _on("a100-80g", 1, "vicuna-7b", "lookup") | _texts(*SUMMARIES, "0.7/8/2", found_share=0.5),
        PUBLISHED,
    ),
    Cell(
        "Llama-3.1-70B, lookup, summaries, 4 H100",
        LOOKUP,
        _on("h100", 4, "llama-3.1-70b", "lookup") | _texts(*SUMMARIES, "0.7/8/2", found_share=0.5),
        PUBLISHED,
    ),
    Cell(
        "Mistral-7B, lookup, context QA, A100",
        LOOKUP,
        _on("a100-80g", 1, "mistral-7b", "lookup") | _texts(1500, 60, "0.8/8/2", found_share=0.6),
        RECALLED,
    ),
    Cell(
        "Llama-3.1-8B + EAGLE, chat, H100",
        HEAD,
        _on("h100", 1, "llama-3.1-8b", "model", draft_model="eagle-llama-3.1-8b")
        | _texts(*CHAT, "eagle1"),
        PUBLISHED,
    ),
    Cell(
        "Vicuna-7B + head, trees, chat, A100",
        TREE,
        _on("a100-80g", 1, "vicuna-7b", "head", draft_model="eagle-vicuna-7b", max_draft_tokens=32)
        | _texts(*CHAT, "eagle1"),
        RECALLED,
        TREE_POLICIES,
    ),
)
