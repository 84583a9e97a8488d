"""`smartspec simulate`: policies compared in virtual time, on named hardware."""

import os
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smartspec.cli.output_files import check_output, check_plot
from smartspec.cli.policy_list import policy_list
from smartspec.cli.runs import play
from smartspec.cli.scenario_options import Drafter, DraftModel, Hardware, Model, TensorParallel
from smartspec.cli.simulate_report import report

if TYPE_CHECKING:
    from smartspec.sim.scenario import Scenario


def simulate(
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare, separated by commas, module:Class too; perfect-estimates is told the truth.",
            show_default="off,fixed:4,goodput,perfect-estimates",
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Poisson arrivals, requests per second.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Replay a CSV arrival_s,prompt_tokens,output_tokens.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Keep so many requests under way.")] = None,
    num_requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests (default 1000, or all that come before --seconds; with a trace: all; beyond its end it "
            "starts over).",
        ),
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Only requests that arrive before.")] = None,
    time_scale: Annotated[float, typer.Option(help="Replay the trace this many times faster.")] = 1.0,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Mean prompt length (without a trace).")] = 512,
    output_tokens: Annotated[int, typer.Option(min=1, help="Mean output length (without a trace).")] = 200,
    hardware: Hardware = "h100",
    model: Model = "8b",
    tensor_parallel: TensorParallel = 1,
    drafter: Drafter = "model",
    draft_model: DraftModel = None,
    draft_tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="Devices of the draft model (default: as many as the target's).")
    ] = None,
    acceptance: Annotated[
        str,
        typer.Option(
            help="Mean acceptance of a draft token: 0.7; with classes of requests 0.9,0.4; changing at second 600 "
            "0.8>0.4@600; with spread over requests (and over tokens) 0.7/8 (0.7/8/4), small numbers for large spread; "
            "eagle1 or eagle3, falling with depth as those heads do; or a .jsonl file, the decision log of a live run."
        ),
    ] = "0.7/8",
    texts: Annotated[
        Path | None,
        typer.Option(
            help="JSONL of prompt_token_ids and output_token_ids, in which a drafter without a model drafts (drafter "
            "prompt-lookup, recycling or module:Class). It is run as in the engine; its own time is not charged."
        ),
    ] = None,
    sibling_share: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Of the cases that a node's elder siblings leave, those in which it is right (drafter head).",
            show_default="0.2",
        ),
    ] = None,
    found_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of output positions at which lookup finds a draft.")
    ] = 1.0,
    tagged: Annotated[bool, typer.Option(help="Requests name their class to the engine.")] = False,
    tpot_target_ms: Annotated[
        str | None, typer.Option(help="Milliseconds per output token that requests want, in turn: 20,50.")
    ] = None,
    ttft_target_ms: Annotated[
        float | None, typer.Option(help="Milliseconds to the first token that requests want.")
    ] = None,
    max_draft_tokens: Annotated[int, typer.Option(min=1, help="Longest draft of a request.")] = 8,
    max_batch: Annotated[int, typer.Option(min=1, help="Requests that run at once on a replica.")] = 256,
    max_batched_tokens: Annotated[int, typer.Option(min=1, help="Ordinary tokens per step.")] = 2048,
    kv_tokens: Annotated[int | None, typer.Option(help="KV memory in tokens (default: what the devices hold).")] = None,
    captured_graphs: Annotated[bool, typer.Option(help="Pad passes to the sizes of captured graphs.")] = False,
    host_seconds: Annotated[float, typer.Option(help="Time of a step that is no pass of a model.")] = 0.001,
    controller_time: Annotated[
        str,
        typer.Option(
            help="The controller's own time per step: measured on this machine before the runs, none, or what the runs "
            "in a JSON file of an earlier --output were charged."
        ),
    ] = "measured",
    jitter: Annotated[float, typer.Option(min=0, help="Noise of times: standard deviation of their logarithm.")] = 0.02,
    profile: Annotated[
        str, typer.Option(help="Error of the controller's start-up profile: a factor, or no-context.")
    ] = "1",
    throttle: Annotated[str | None, typer.Option(help="From a second on passes take longer: 60:1.3.")] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Engines behind a router.")] = 1,
    router: Annotated[str, typer.Option(help="least-loaded or round-robin.")] = "least-loaded",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Runs that are played at once.")] = 1,
    output: Annotated[Path | None, typer.Option(help="Save settings, summaries and every request as JSON.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the distributions of latency: .png, .pdf, .svg or .jpg.")
    ] = None,
) -> None:
    """Compare policies under the same requests and random numbers; give one of --rate, --trace and --batch.

    Time and acceptance are computed instead of run; scheduler, step loop and controller are those of the engine.
    Ctrl-C reports and saves what there is by then. Exit codes: 130 after Ctrl-C, 1 if a process was killed.

    Example: smartspec simulate --hardware h100 --model 70b --tensor-parallel 4 --rate 4 --seeds 3
    """
    from smartspec.sim.scenario import Scenario

    if output is not None:
        check_output("--output", output)
    if plot is not None:
        check_plot("--plot", plot)
    if output is not None and plot is not None and os.path.realpath(output) == os.path.realpath(plot):
        raise ValueError(f"--output and --plot are both {output}: name two files")
    settings = {
        "rate": rate,
        "trace": None if trace is None else str(trace),
        "batch": batch,
        "num_requests": num_requests,
        "seconds": seconds,
        "time_scale": time_scale,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "hardware": hardware,
        "model": model,
        "tensor_parallel": tensor_parallel,
        "drafter": drafter,
        "draft_model": draft_model,
        "draft_tensor_parallel": draft_tensor_parallel,
        "acceptance": acceptance,
        "texts": None if texts is None else str(texts),
        **({} if sibling_share is None else {"sibling_share": sibling_share}),
        "found_share": found_share,
        "tagged": tagged,
        "tpot_targets": _targets(tpot_target_ms),
        "ttft_target": None if ttft_target_ms is None else ttft_target_ms / 1000,
        "max_draft_tokens": max_draft_tokens,
        "max_batch": max_batch,
        "max_batched_tokens": max_batched_tokens,
        "kv_tokens": kv_tokens,
        "captured_graphs": captured_graphs,
        "host_seconds": host_seconds,
        "jitter": jitter,
        "profile": profile if profile == "no-context" else _number("--profile", profile),
        "throttle": _throttle(throttle),
        "replicas": replicas,
        "router": router,
    }
    names = _policies(policy, max_draft_tokens)
    charged = _controller_seconds(controller_time, [Scenario(policy=name, seed=seed, **settings) for name in names])
    scenarios = [replace(scenario, seed=seed + i) for i in range(seeds) for scenario in charged]
    outcomes, failure = play(scenarios, processes)
    if outcomes:
        report(outcomes, len(scenarios), output, plot)
    if isinstance(failure, KeyboardInterrupt):
        raise typer.Exit(130)
    if isinstance(failure, BrokenProcessPool):
        print("error: a process was killed, maybe for want of memory: give fewer --processes", file=sys.stderr)
        raise typer.Exit(1)
    if failure is not None:
        raise failure


def _controller_seconds(controller_time: str, scenarios: list["Scenario"]) -> list["Scenario"]:
    """The scenarios, one for each policy, with what is charged of the controller's time."""
    from smartspec.sim.controller_time import measured_controller_seconds, read_controller_seconds

    if controller_time == "none":
        return scenarios
    if controller_time == "measured":
        return [replace(scenario, controller_seconds=measured_controller_seconds(scenario)) for scenario in scenarios]
    known = read_controller_seconds(Path(controller_time))
    missing = [scenario.policy for scenario in scenarios if scenario.policy not in known]
    if missing:
        raise ValueError(
            f"--controller-time {controller_time} has no run of {', '.join(missing)}: use measured or none"
        )
    return [replace(scenario, controller_seconds=known[scenario.policy]) for scenario in scenarios]


def _policies(text: str | None, max_draft_tokens: int) -> list[str]:
    """Their names, all of them checked before the first is played."""
    from smartspec.control.policy_names import parse_policy

    if text is None:
        return ["off", *(["fixed:4"] if max_draft_tokens >= 4 else []), "goodput", "perfect-estimates"]
    names = policy_list(text)
    for name in names:
        if name != "perfect-estimates":
            parse_policy(name, max_draft_tokens)
    return names


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{option} {text!r} is not a number") from None


def _targets(text: str | None) -> tuple[float, ...]:
    """In seconds."""
    return () if text is None else tuple(_number("--tpot-target-ms", part) / 1000 for part in text.split(","))


def _throttle(text: str | None) -> tuple[tuple[float, float], ...]:
    if text is None:
        return ()
    second, colon, factor = text.partition(":")
    if not colon:
        raise ValueError(f"--throttle {text!r} is not a second and a factor, like 60:1.3")
    return ((_number("--throttle", second), _number("--throttle", factor)),)
