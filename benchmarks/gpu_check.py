"""Does SmartSpec hold in vLLM on this machine's GPU? Exactness, then tokens per second, in ten
minutes, as JSON.

    make test-gpu                                   # installs vLLM, then runs this with Qwen/Qwen3-8B
    make test-gpu ARGS="--model MODEL --spec-method eagle3 --spec-model HEAD"
    python benchmarks/gpu_check.py --vllm-python .venv-vllm/bin/python --model .venv-vllm/model --levels 1,2 --prompts 6

Servers run in turn, each alone: no speculation, stock vLLM with each fixed length, SmartSpec. By
default, vLLM drafts with ngram, and SmartSpec in the scheduler. Without a GPU the same runs on
vLLM's CPU build, with a small model.

Exactness: greedy answers are compared with those without speculation. In 16 bits a target may
choose otherwise where two tokens are equally likely. So where an answer leaves the other, both
tokens must have been within --tie of each other. All else counts as wrong. The exit status is 1 if
an answer is wrong, or if SmartSpec was not in use.

Cells: a fixed number of requests at a time, tokens per second over --waves times as many. SmartSpec
serves each cell once before that, to learn step times. Rounds are not interleaved: a difference of
a few percent says nothing.
"""  # noqa: E501

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from lib.commands import application, console_of, run, table_of

from smartspec.vllm_plugin.compatibility import NO_DRAFTS

OFF, OURS = "off", "smartspec"
WORKER = Path(__file__).with_name("lib") / "gpu_worker.py"
app = application(__doc__)
console = console_of(120)


@app.command()
def gpu_check(
    model: Annotated[str, typer.Option(help="Hugging Face id or folder.")] = "Qwen/Qwen3-8B",
    spec_method: Annotated[
        str, typer.Option(help="Of drafting: vLLM's, or smartspec for ours.")
    ] = OURS,
    spec_model: Annotated[
        str | None, typer.Option(help="Draft model or head, where the method needs one.")
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="Fixed lengths of stock vLLM; the longest is SmartSpec's.")
    ] = "1,3,5",
    levels: Annotated[str, typer.Option(help="Requests at a time.")] = "1,8,32,128",
    prompts: Annotated[int, typer.Option(min=1, max=128, help="Prompts of the comparison.")] = 50,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens of a request.")] = 128,
    waves: Annotated[
        float, typer.Option(min=1, help="Requests of a cell, for each that runs at a time.")
    ] = 3,
    tie: Annotated[
        float, typer.Option(min=0, help="Difference of log-probabilities that counts as none.")
    ] = 0.15,
    vllm_python: Annotated[
        str, typer.Option(help="Python of the environment that holds vLLM.")
    ] = sys.executable,
    output: Annotated[Path, typer.Option(help="JSON of all results.")] = Path(
        "build/gpu-check.json"
    ),
) -> None:
    """Exactness and tokens per second on this machine's GPU."""
    common = {
        "model": model,
        "levels": [int(level) for level in levels.split(",")],
        "num_prompts": prompts,
        "max_tokens": max_tokens,
        "waves": waves,
    }
    results: dict = {
        "settings": common | {"method": spec_method, "spec_model": spec_model, "tie": tie},
        "servers": {},
    }
    for name, speculation in speculations(spec_method, spec_model, lengths).items():
        console.print(f"{name} ...")
        results["servers"][name] = serve(
            vllm_python, common | {"name": name, "speculation": speculation}
        )
    wrong = compare(results["servers"], tie)
    results["wrong_answers"] = wrong
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=1) + "\n")
    report(results)
    console.print(f"written to {output}")
    if any(wrong.values()) or results["servers"][OURS]["problems"]:
        raise typer.Exit(1)


def speculations(method: str, model: str | None, lengths: str) -> dict[str, dict | None]:
    """vLLM's speculative configuration of each server."""
    numbers = sorted(int(length) for length in lengths.split(","))
    drafts = {"method": "ngram" if method == OURS else method} | (
        {} if model is None else {"model": model}
    )
    if drafts["method"] == "ngram":
        drafts |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    fixed = {f"fixed:{number}": drafts | {"num_speculative_tokens": number} for number in numbers}
    ours = {"model": NO_DRAFTS} if method == OURS else drafts
    return {OFF: None} | fixed | {OURS: ours | {"num_speculative_tokens": numbers[-1]}}


def serve(python: str, settings: dict) -> dict:
    """What lib/gpu_worker.py measures with these settings, in a process of its own: a GPU's memory
    is given back."""
    with TemporaryDirectory() as folder:
        written, read = Path(folder) / "settings.json", Path(folder) / "result.json"
        written.write_text(json.dumps(settings | {"cache": folder}))
        subprocess.run([python, str(WORKER), str(written), str(read)], check=True)
        return json.loads(read.read_text())


def compare(servers: dict[str, dict], tie: float) -> dict[str, int]:
    """Wrong answers of each server: those that leave the answer without speculation where there was
    no tie."""
    plain = servers[OFF]["answers"]
    return {
        name: sum(
            is_wrong(answer, theirs["tokens"], tie)
            for answer, theirs in zip(plain, server["answers"], strict=True)
        )
        for name, server in servers.items()
    }


def is_wrong(plain: dict, tokens: list[int], tie: float) -> bool:
    """plain: `tokens`, and `best`: of each, the log-probabilities of the likeliest tokens, by
    token."""
    pairs = zip(plain["tokens"], tokens, strict=False)
    at = next((position for position, (a, b) in enumerate(pairs) if a != b), None)
    if at is None:
        return len(plain["tokens"]) != len(tokens)
    best = plain["best"][at]
    return best.get(str(tokens[at]), float("-inf")) < max(best.values()) - tie


def report(results: dict) -> None:
    servers = results["servers"]
    levels = [str(level) for level in results["settings"]["levels"]]
    rows = [
        (
            name,
            *(f"{server['tokens_per_second'][level]:.0f}" for level in levels),
            f"{server['accepted'] / max(server['drafted'], 1):.2f}",
            sum(
                a["tokens"] != b["tokens"]
                for a, b in zip(server["answers"], servers[OFF]["answers"], strict=True)
            ),
            results["wrong_answers"][name],
        )
        for name, server in servers.items()
    ]
    about = servers[OURS]
    title = f"{about['device']}, vLLM {about['vllm']}: tokens per second by requests at a time"
    console.print(
        table_of(title, ("server", *levels, "acceptance", "answers that differ", "wrong"), rows)
    )
    console.print(f"SmartSpec of the best other, worst cell: {worst_ratio(servers, levels):.2f}")
    for problem in about["problems"]:
        console.print(f"problem: {problem}")


def worst_ratio(servers: dict[str, dict], levels: list[str]) -> float:
    speeds = {name: server["tokens_per_second"] for name, server in servers.items()}
    return min(
        speeds[OURS][level] / max(speeds[name][level] for name in speeds if name != OURS)
        for level in levels
    )


if __name__ == "__main__":
    run(app)
