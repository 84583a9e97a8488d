"""`smartspec simulate`: policies compared in virtual time, on named hardware."""

import os
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated

import typer

from smartspec.cli.output_files import check_output, check_plot
from smartspec.cli.policy_list import policy_list
from smartspec.cli.runs import play
from smartspec.cli.simulate_report import report


def simulate(
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare, separated by commas; oracle is told the truth.",
            show_default="off,fixed:4,goodput,oracle",
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
    hardware: Annotated[
        str,
        typer.Option(
            help="a100-80g, h100, h200, b200, l40s, a40, l4, a JSON file of measured curves, or a .jsonl file: the "
            "decision log of a live run, for its profile."
        ),
    ] = "h100",
    model: Annotated[str, typer.Option(help="8b, 70b, or a shape like qwen-2.5-32b.")] = "8b",
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Devices per replica.")] = 1,
    drafter: Annotated[str, typer.Option(help="model, depth by depth, or lookup, which costs nothing.")] = "model",
    draft_model: Annotated[
        str | None, typer.Option(help="Shape of the draft model (default: an EAGLE head of the model).")
    ] = None,
    acceptance: Annotated[
        str,
        typer.Option(
            help="Mean acceptance of a draft token: 0.7; with classes of requests 0.9,0.4; changing at second 600 "
            "0.8>0.4@600; with spread over requests (and over tokens) 0.7/8 (0.7/8/4), small numbers for large spread; "
            "or a .jsonl file, the decision log of a live run."
        ),
    ] = "0.7/8",
    tagged: Annotated[bool, typer.Option(help="Requests name their class to the engine.")] = False,
    max_draft_tokens: Annotated[int, typer.Option(min=1, help="Longest draft of a request.")] = 8,
    max_batch: Annotated[int, typer.Option(min=1, help="Requests that run at once on a replica.")] = 256,
    max_batched_tokens: Annotated[int, typer.Option(min=1, help="Ordinary tokens per step.")] = 2048,
    kv_tokens: Annotated[int | None, typer.Option(help="KV memory in tokens (default: what the devices hold).")] = None,
    captured_graphs: Annotated[bool, typer.Option(help="Pad passes to the sizes of captured graphs.")] = False,
    host_seconds: Annotated[float, typer.Option(help="Time of a step that is no pass of a model.")] = 0.001,
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
        "acceptance": acceptance,
        "tagged": tagged,
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
    scenarios = [Scenario(policy=name, seed=seed + i, **settings) for i in range(seeds) for name in names]
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


def _policies(text: str | None, max_draft_tokens: int) -> list[str]:
    """Their names, all of them checked before the first is played."""
    from smartspec.control.policy_names import parse_policy

    if text is None:
        return ["off", *(["fixed:4"] if max_draft_tokens >= 4 else []), "goodput", "oracle"]
    names = policy_list(text)
    for name in names:
        if name != "oracle":
            parse_policy(name, max_draft_tokens)
    return names


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{option} {text!r} is not a number") from None


def _throttle(text: str | None) -> tuple[tuple[float, float], ...]:
    if text is None:
        return ()
    second, colon, factor = text.partition(":")
    if not colon:
        raise ValueError(f"--throttle {text!r} is not a second and a factor, like 60:1.3")
    return ((_number("--throttle", second), _number("--throttle", factor)),)
