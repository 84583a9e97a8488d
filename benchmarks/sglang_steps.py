"""What does SmartSpec bring inside SGLang on GPUs? SGLang's real policies, with an emulated GPU in
virtual time.

    make test-sglang   # makes .venv-sglang
    .venv-sglang/bin/python benchmarks/sglang_steps.py

AdaptiveController, SGLang's own policy and its configurations are those of SGLang. The loop of its
scheduler is played, and takes the time of a roofline. Drafts are accepted by a stated rule.
"""

import json
import logging
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from lib.commands import run
from lib.emulated_gpu.acceptance import StatedAcceptance
from lib.emulated_gpu.report import markdown
from lib.emulated_gpu.setups import SETUPS, setup_of
from lib.emulated_gpu.sglang_loop import GRAPH_SIZES, Loop, Row, VirtualClock, Worker

ALL_TIERS = {"1": {"candidate_steps": [0, 1, 2, 3, 5, 7]}}
POLICIES = "off,fixed:1,fixed:3,sglang,sglang-all,smartspec,smartspec-all"
OURS = ("smartspec", "smartspec-all")
FEWEST_WARM, FEWEST_MEASURED = 3, 24  # requests
WARM_WAVES, WAVES = 1, 3  # requests for each one at a time
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class Scene:
    """requests: at a time. prompt, output: mean tokens of a request, which has half to one and a
    half times as many."""

    setup: str
    acceptance: str
    requests: int
    prompt: int
    output: int
    seed: int


@dataclass(frozen=True)
class Figures:
    """speed: tokens per second. steps: mean. switches: of the number of steps, share of steps.
    host: real milliseconds of the policy's calls in a step."""

    speed: float
    steps: float
    switches: float
    host: float


@app.command()
def table(
    setups: Annotated[str, typer.Option(help=f"Of {', '.join(SETUPS)}.")] = "8b-h100",
    acceptance: Annotated[
        str, typer.Option(help="As `smartspec simulate`, separated by semicolons.")
    ] = ("eagle3;0.3;0.5/8/2;0.9/8,0.3/8;0.8>0.3@5>0.8@10"),
    requests: Annotated[str, typer.Option(help="At a time.")] = "1,8,32,64,128",
    policies: Annotated[
        str, typer.Option(help="fixed:K is SGLang without its adaptive steps.")
    ] = POLICIES,
    prompt_tokens: Annotated[int, typer.Option(min=2, help="Mean.")] = 256,
    output_tokens: Annotated[int, typer.Option(min=2, help="Mean.")] = 200,
    seed: Annotated[int, typer.Option(help="Of requests and of what is accepted.")] = 0,
) -> None:
    """Tokens per second by policy, the worst cell of SmartSpec first.

    "sglang" and "smartspec" choose out of SGLang's default tiers, those with "-all" out of 0, 1, 2,
    3, 5 and 7 at all batch sizes. Ratios are to SGLang's own policy with the same tiers, and to the
    best of all that is not SmartSpec.
    """
    logging.disable(logging.INFO)  # SGLang tells of each switch
    names, rows = policies.split(","), []
    for setup, stated, number in product(
        setups.split(","), acceptance.split(";"), map(int, requests.split(","))
    ):
        setup_of(setup)
        scene = Scene(setup, stated, number, prompt_tokens, output_tokens, seed)
        rows.append((scene, {name: measure(scene, name) for name in names}))
    rows.sort(key=lambda row: _worst(row[1]))
    print(
        markdown(("GPU", "acceptance", "requests", *names, *_ratio_names(names)), map(_shown, rows))
    )
    print(
        "\n"
        + markdown(
            ("policy", "mean steps", "switches %", "host ms a step, mean", "most"),
            _details(rows, names),
        )
    )


def _ratios(found: dict[str, Figures]) -> dict[str, float]:
    """SmartSpec's speed relative to SGLang's own policy with the same tiers, and to the best
    other."""
    best = max((f.speed for name, f in found.items() if name not in OURS), default=float("nan"))
    ratios = {}
    for ours in OURS:
        own = ours.replace("smartspec", "sglang")
        if ours in found and own in found:
            ratios[f"{ours} / {own}"] = found[ours].speed / found[own].speed
        if ours in found:
            ratios[f"{ours} / best"] = found[ours].speed / best
    return ratios


def _worst(found: dict[str, Figures]) -> float:
    return min(_ratios(found).values(), default=0.0)


def _ratio_names(names: list[str]) -> list[str]:
    return list(_ratios({name: Figures(1.0, 0.0, 0.0, 0.0) for name in names}))


def _shown(row: tuple[Scene, dict[str, Figures]]) -> list[str]:
    scene, found = row
    speeds = [f"{figures.speed:,.0f}" for figures in found.values()]
    ratios = [f"{ratio:.3f}" for ratio in _ratios(found).values()]
    return [scene.setup, f"`{scene.acceptance}`", str(scene.requests), *speeds, *ratios]


def _details(rows: list, names: list[str]) -> list[list[str]]:
    lines = []
    for name in names:
        steps, switches, host = np.array(
            [(f[name].steps, f[name].switches, f[name].host) for _, f in rows]
        ).T
        line = (
            f"{steps.mean():.2f}",
            f"{100 * switches.mean():.1f}",
            f"{host.mean():.2f}",
            f"{host.max():.2f}",
        )
        lines.append([name, *line])
    return lines


def measure(scene: Scene, policy: str) -> Figures:
    """One cell. It begins with nothing learned; as many requests as run at a time end before
    anything counts."""
    clock = VirtualClock()
    worker = make_worker(policy, clock)
    drafter = None if policy == "off" else "eagle3"
    rng = np.random.default_rng([scene.seed, 7])
    count = 0

    def next_row() -> Row:
        nonlocal count
        count += 1
        sizes = [
            int(rng.integers(mean // 2, 3 * mean // 2, endpoint=True))
            for mean in (scene.prompt, scene.output)
        ]
        return Row(count, sizes[0], sizes[1])

    loop = Loop(
        worker,
        setup_of(scene.setup).gpu_time(drafter),
        StatedAcceptance(scene.acceptance, 7, scene.seed),
        clock,
    )
    for _ in range(scene.requests):
        loop.add(next_row())
    warm = max(FEWEST_WARM, WARM_WAVES * scene.requests)
    loop.run(lambda: len(loop.ended) >= warm, next_row)
    before = (
        loop.tokens,
        clock.now,
        loop.num_steps,
        loop.step_sum,
        worker.num_switches,
        worker.spent,
    )
    measured = max(FEWEST_MEASURED, WAVES * scene.requests)
    loop.run(lambda: len(loop.ended) >= warm + measured, next_row)
    after = loop.tokens, clock.now, loop.num_steps, loop.step_sum, worker.num_switches, worker.spent
    tokens, seconds, steps, step_sum, switches, spent = (
        b - a for a, b in zip(before, after, strict=True)
    )
    return Figures(tokens / seconds, step_sum / steps, switches / steps, 1e3 * spent / steps)


def make_worker(policy: str, clock: VirtualClock) -> Worker:
    """A worker with SGLang's controller around that policy; without one where the number of steps
    is fixed."""
    if policy == "off" or policy.startswith("fixed:"):
        return Worker(0 if policy == "off" else int(policy.removeprefix("fixed:")))
    from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController
    from sglang.srt.speculative.adaptive_spec_params import (
        AdaptiveSpeculativeParams,
        resolve_candidate_steps_from_config,
    )

    from smartspec.sglang_plugin.policy import GoodputSteps
    from smartspec.vllm_plugin.file_thread import FileThread
    from smartspec.vllm_plugin.switch import Switch

    path = _tiers_file() if policy.endswith("-all") else None
    candidates = resolve_candidate_steps_from_config(path)
    worker = Worker(candidates[len(candidates) // 2])  # as SGLang begins where nothing is told
    own = AdaptiveSpeculativeParams(worker.speculative_num_steps, path)
    ours = policy.startswith("smartspec")
    chosen = (
        GoodputSteps(own, Switch(Path("build/no-switch"), FileThread()), _fail, clock)
        if ours
        else own
    )
    worker.adaptive_controller = AdaptiveController(worker, chosen)
    worker.adaptive_controller.init_states(GRAPH_SIZES)
    return worker


def _tiers_file() -> str:
    path = Path("build/sglang-tiers.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(ALL_TIERS))
    return str(path)


def _fail(text: str) -> None:
    raise RuntimeError(text)


if __name__ == "__main__":
    run(app)
