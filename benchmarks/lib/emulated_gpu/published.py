"""Times of steps on real H100s, measured here and published by others, and what the roofline says
of the same steps."""

import json
from dataclasses import dataclass
from pathlib import Path

from lib.emulated_gpu.setups import SETUPS

MEASURED = "measured, vLLM 0.33"
H100 = Path(__file__).parents[3] / "docs" / "results" / "h100.jsonl"
# of a cell's time: with less, the GPU waits for the host, and its own time is not seen
LEAST_WAITING = 0.05
MEAN_CONTEXT = 128 + 192 // 2  # tokens of a request in these cells: a prompt and half an answer
LAMBDA = "Lambda, vLLM 0.6.0"
SMARTSPEC = "SmartSpec's fit"


@dataclass(frozen=True)
class PublishedStep:
    """A step in which requests feed tokens_per_request each. context: tokens in the KV of all.
    milliseconds: its time."""

    source: str
    setup: str
    requests: int
    tokens_per_request: int
    context: int
    milliseconds: float


# Llama-3-8B-Instruct in bfloat16 on an H100 SXM, 80 ShareGPT prompts sent at once:
# github.com/LambdaLabsML/ vllm-benchmark,
# results/prompt_80/1xH100-80GB-SXM/Meta-Llama-3-8B-Instruct_tp1_len2048.json of 2024-09-07. The
# server ran ten steps at a time, without the host between them: a tenth of the sixth request's
# inter-token times 1, 3, 8, 15, 25, 40, 50 and 63. Requests and context follow from the lengths of
# prompts and answers in that file.
_INTERVALS = (
    (65, 15473, 9.04), (53, 10669, 8.34), (43, 10091, 8.24), (34, 10181, 8.12), (21, 9154, 7.98),
    (11, 6978, 7.89), (6, 4252, 7.54), (2, 1412, 7.20),
)  # fmt: skip
# arXiv 2406.14066's prototype on H100s: milliseconds of a constant, per fed token and per token in
# the KV.
_FITS = {"8b-h100": (6.939, 1.844e-2, 4.859e-5), "70b-4xh100": (18.345, 6.402e-2, 6.244e-5)}
_FIT_STEPS = ((1, 1), (32, 1), (128, 1), (1, 4), (32, 4))


def measured_steps() -> list[PublishedStep]:
    """Steps without drafts and without prefill of benchmarks/gpu_cells.py, job off: the median of
    each level."""
    cells = [json.loads(line) for line in H100.read_text(encoding="utf-8").splitlines()]
    cells = [
        cell
        for cell in cells
        if cell.get("job") == "off" and cell.get("waiting", 0.0) >= LEAST_WAITING
    ]
    return [
        PublishedStep(
            MEASURED, "8b-h100", cell["level"], 1, cell["level"] * MEAN_CONTEXT, kind["ms"]
        )
        for cell in cells
        for kind in cell["alike"]
        if kind["graph"] == "full" and not kind["prefill"]
    ]


def published_steps() -> list[PublishedStep]:
    """All of them. The fits stand for steps at 512 tokens of context."""
    steps = [
        PublishedStep(LAMBDA, "8b-h100", requests, 1, context, ms)
        for requests, context, ms in _INTERVALS
    ]
    for setup, (constant, per_token, per_kv) in _FITS.items():
        for requests, tokens in _FIT_STEPS:
            fed, context = requests * tokens, requests * (512 + tokens)
            steps.append(
                PublishedStep(
                    SMARTSPEC,
                    setup,
                    requests,
                    tokens,
                    context,
                    constant + per_token * fed + per_kv * context,
                )
            )
    return steps


def emulated_milliseconds(step: PublishedStep) -> float:
    """Of the same step on the emulated GPU, in a full graph."""
    fed = step.requests * step.tokens_per_request
    target = SETUPS[step.setup].gpu_time(None).target
    return 1e3 * float(target.seconds(fed, step.context, step.requests))
