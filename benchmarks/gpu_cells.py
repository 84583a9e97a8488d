"""vLLM and SmartSpec on this machine's GPU, policy by policy, from a bundle
(benchmarks/gpu_bundle.py).

    PYTHONPATH=src python3 benchmarks/gpu_cells.py --bundle .gpu            # all jobs; make test-gpu BUNDLE=.gpu
    PYTHONPATH=src python3 benchmarks/gpu_cells.py --bundle .gpu --only eagle3 --levels 16,128
    PYTHONPATH=src python3 benchmarks/gpu_cells.py rates --bundle .gpu      # latency against rate: 10 minutes
    python benchmarks/gpu_cells.py table gpu.jsonl
    python benchmarks/gpu_cells.py plot gpu.jsonl -o docs/results/h100.png
    python benchmarks/gpu_cells.py observed docs/results/h100.jsonl --levels 1,64
    python benchmarks/gpu_cells.py card docs/results/h100.jsonl -o docs/results/cards/llama-3.1-8b-eagle3-h100.json

rates: Poisson arrivals below, at and above what vLLM serves without speculation, which is measured
first (job rates-off, then job rates: one token, three tokens, SmartSpec). Requests, their arrivals
and which drafts are right are the same under every policy. Mean and p99 seconds from arrival to
last token.

observed: what `smartspec vllm observed` would predict of all cells, from those of the named levels
alone.

Needs no network and no virtual environment. Each job is an engine in a process of its own. Weights
are random, in the shape of Llama-3.1-8B with an EAGLE-3 head; which draft tokens are right is
stated, the same under every policy. Every cell is a closed loop of so many requests, with prompts
of 128 and answers of 128 to 256 tokens. Lines of JSON go to gpu.jsonl in the folder $OUT. Compiled
kernels go to triton.tgz there; in the bundle's folder they are used again.

Jobs: off and off-after (vLLM without speculation), ngram (vLLM's on the GPU), eagle3,
adaptive-stock and adaptive (vLLM's adaptive verification alone, and with SmartSpec), exact-...
(greedy tokens of a small model, with accepted drafts), embedded (the project's own engine). By name
alone (--only): forced (acceptance 0.5, 0.7 and 0.9, lengths 1, 3, 5 and 7), draft-model, block (a
DFlash drafter), copies (n-gram on a text that repeats by itself), rollout-off and rollout (256
requests at once, to the last one's end). The exit status is 1 if a job failed.
"""  # noqa: E501

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lib.gpu.plan import Plan
from lib.gpu.processes import run_job
from lib.gpu.results import BEGAN, Results
from lib.gpu.tables import markdown, plot_speeds, read_cells
from lib.gpu.unpacked import become, keep_kernels, unpack

JOBS = {  # seconds after which a job is ended
    "off": 90, "ngram": 150, "off-after": 90, "eagle3": 330, "adaptive-stock": 130, "adaptive": 130,
    "exact-off": 60, "exact-ngram": 60, "exact-eagle3": 60, "exact-adaptive": 60, "embedded": 120,
}  # fmt: skip
RATE_JOBS = {"rates-off": 190, "rates": 340}
MORE_JOBS = {
    "forced": 230,
    "draft-model": 160,
    "block": 160,
    "copies": 150,
    "rollout-off": 90,
    "rollout": 260,
}


def main() -> int:
    options = make_parser().parse_args()
    if options.command not in (None, "rates") and not options.files:
        raise ValueError(f"name files of results: {options.command} gpu.jsonl")
    if options.command == "table":
        print(markdown(read_cells(options.files)))
        return 0
    if options.command in ("observed", "card"):
        from lib.gpu.observed import print_predictions, write_card

        if options.command == "card":
            write_card(read_cells(options.files), options.output)
        else:
            print_predictions(read_cells(options.files), levels_of(options.levels))
        return 0
    if options.command == "plot":
        plot_speeds(read_cells(options.files), options.output)
        return 0
    if options.bundle is None:
        raise ValueError("name the bundle's folder with --bundle, or give a command: table, plot")
    plan = Plan(
        options.folder, Path(os.environ.get("OUT", "gpu-out")), levels_of(options.levels),
        policies=tuple(filter(None, options.policies.split(","))), seconds=options.seconds,
        settings={"guard": 0.0} | settings_of(options.settings), model_len=options.model_len,
        emulates=options.emulated,
    )  # fmt: skip
    names = list(RATE_JOBS) if options.command == "rates" else names_of(options.only)
    unpack(options.bundle, plan.folder)
    become(plan.folder, plan.emulates)
    return 0 if run_jobs(plan, names, options.budget) else 1


def make_parser() -> argparse.ArgumentParser:
    """With argparse: before the bundle is unpacked, there is the machine's Python alone."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "command",
        nargs="?",
        choices=("table", "plot", "observed", "card", "rates"),
        help="of results; rates and none run jobs",
    )
    parser.add_argument("files", nargs="*", type=Path, help="gpu.jsonl of one or several runs")
    parser.add_argument("--bundle", type=Path, help="folder of the bundle")
    parser.add_argument("--only", default="", help="some of the jobs, with commas")
    parser.add_argument(
        "--levels", default="1,4,16,64,128,256", help="requests at a time, up to 256"
    )
    parser.add_argument("--policies", default="", help="of eagle3 and ngram: some of them")
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="of a cell")
    parser.add_argument(
        "--budget", type=float, default=530, help="seconds for all jobs; later ones are left out"
    )
    parser.add_argument(
        "--settings", default="{}", help="of the plugin, beside its policy: a JSON object"
    )
    parser.add_argument(
        "--model-len", type=int, default=Plan.model_len, help="largest context of the large model"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("/tmp/smartspec-gpu"), help="to unpack the bundle in"
    )
    parser.add_argument(
        "--emulated", action="store_true", help="a trial without a GPU: nothing is measured"
    )
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        default=Path("h100.png"),
        help="of plot: PNG or SVG; of card: JSON",
    )
    return parser


def names_of(only: str) -> list[str]:
    names = [name for name in only.split(",") if name] or list(JOBS)
    if unknown := sorted(set(names) - set(JOBS | MORE_JOBS)):
        raise ValueError(
            f"unknown job {', '.join(unknown)}: use some of {', '.join(JOBS | MORE_JOBS)}"
        )
    return names


def settings_of(text: str) -> dict[str, str]:
    try:
        settings = json.loads(text)
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise ValueError(f'--settings {text}: use a JSON object, such as {{"guard": "0"}}')
    return settings


def levels_of(text: str) -> tuple[int, ...]:
    try:
        levels = tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        levels = ()
    if not levels or not 1 <= levels[0] <= levels[-1] <= 256:
        raise ValueError(f"--levels {text}: use numbers of 1 to 256, with commas")
    return levels


def run_jobs(plan: Plan, names: list[str], budget: float) -> bool:
    """Whether all ended well. Jobs for which no time is left are named, and count as failed."""
    from lib.gpu.engine import imported

    if plan.emulates:
        from triton.backends import backends

        backends["nvidia"].driver.is_active = staticmethod(lambda: True)
    results = Results(plan.output)
    results.add(began=time.time(), **imported())
    is_well = True
    for name in names:
        left = budget - (time.perf_counter() - BEGAN)
        if left < 20:
            results.add(problem=f"{name} was left out: {budget:.0f} s are spent")
            is_well = False
            continue
        own = Results(plan.output, name)
        is_well &= run_job(
            name,
            min((JOBS | RATE_JOBS | MORE_JOBS)[name], left),
            own,
            partial(job(name), own, plan),
        )
        keep_kernels(plan.folder, plan.output)
    return is_well


def job(name: str) -> Callable[[Results, Plan], None]:
    """Imported here: vLLM has to be there."""
    from lib.gpu import embedded, exact, jobs, other_jobs, rates

    if name.startswith("exact-"):
        return partial(exact.run_exact, kind=name.removeprefix("exact-"))
    return {
        "off": jobs.run_off,
        "off-after": jobs.run_off,
        "ngram": jobs.run_ngram,
        "eagle3": jobs.run_eagle3,
        "adaptive-stock": partial(jobs.run_adaptive, policy="stock"),
        "adaptive": partial(jobs.run_adaptive, policy="goodput"),
        "embedded": embedded.run_embedded,
        "rates-off": rates.run_off,
        "rates": rates.run_policies,
        "forced": other_jobs.run_forced,
        "draft-model": other_jobs.run_draft_model,
        "block": other_jobs.run_block,
        "copies": other_jobs.run_copies,
        "rollout-off": partial(other_jobs.run_rollout, speculates=False),
        "rollout": other_jobs.run_rollout,
    }[name]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
