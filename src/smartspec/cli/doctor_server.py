"""`smartspec doctor --url`: what a running server says of itself, and what to change."""

import json
import re
from collections.abc import Iterator
from typing import Any

LARGE_ERROR = 0.2  # of predicted step times


def show_server(url: str, key: str | None) -> list[str]:
    """Print what runs at url and what it has measured. What to change. Raises ValueError with the
    remedy if no server of ours answers there."""
    url = url.rstrip("/").removesuffix("/v1")
    state, counts = (
        json.loads(_text(url, "/v1/speculation", key)),
        totals(_text(url, "/metrics", key)),
    )
    drafters = ", ".join(state["drafters"]) or "none"
    print(f"{state['model']} at {url}, policy {state['policy']}, drafters {drafters}")
    for name, about in state["kernels"].items():
        print(f"  {name}: {about}")
    for line in (*_since_start(counts), *_last_steps(state.get("decisions", []))):
        print(line)
    return list(advice_on_state(state, counts))


def totals(metrics: str) -> dict[str, float]:
    """Samples without labels of Prometheus' text, by name without the prefix."""
    return {
        name: float(value)
        for name, value in re.findall(r"^smartspec_(\w+) (\S+)$", metrics, re.MULTILINE)
    }


def advice_on_state(state: dict[str, Any], counts: dict[str, float]) -> Iterator[str]:
    """The faults of a running server, each with its remedy. state: its /v1/speculation."""
    if reason := state.get("policy_state", {}).get("pause"):
        yield (
            f"drafts are paused ({reason}): the policy tries again by itself; if this comes back, "
            "use --policy off"
        )
    error = state.get("cost_model", {}).get("median_relative_error") or 0.0
    if error > LARGE_ERROR:
        yield (
            f"predicted step times are off by {error:.0%}: other programs use the processor, or it "
            "gets too hot; when it is quiet, delete `profiles` in the cache folder and restart"
        )
    if failed := sum(state.get("controller_errors", {}).values()):
        yield (
            f"the controller failed {failed} times and made no drafts meanwhile: report the "
            "traceback in the log"
        )
    if waiting := counts.get("requests_waiting", 0):
        yield (
            f"{waiting:.0f} requests wait: raise --max-batch if memory allows, or start another "
            "server"
        )


def _since_start(counts: dict[str, float]) -> Iterator[str]:
    rows, verified = counts.get("decode_rows_total", 0), counts.get("verified_tokens_total", 0)
    accepted = counts.get("accepted_tokens_total", 0)
    if not rows:
        yield "No request has been answered since the start."
        return
    tokens = counts.get("generation_tokens_total", 0)
    yield f"Since the start: {tokens:.0f} tokens, {1 + accepted / rows:.2f} per request and step"
    if verified:
        yield (
            f"  of {verified:.0f} draft tokens that the model checked, {accepted / verified:.0%} "
            "were accepted"
        )


def _last_steps(decisions: list[dict]) -> Iterator[str]:
    decoding = [decision for decision in decisions if decision["num_rows"]]
    if not decoding:
        return
    last = decoding[-1]
    lengths = [length for decision in decoding for length in decision["lengths"]]
    yield (
        f"The last {len(decoding)} decoding steps: drafts of {min(lengths)} to {max(lengths)} "
        "tokens"
    )
    yield (
        f"  the newest: {last['num_rows']} requests, {last['predicted_goodput']:.0f} tokens/s "
        f"predicted, {last['predicted_goodput_off']:.0f} without drafts"
    )


def _text(url: str, path: str, key: str | None) -> str:
    from smartspec.bench.probe import get

    answer = get(url, path, key)
    if answer.status_code == 401:
        raise ValueError(f"{url} needs a key: --api-key, the admin key where there is one")
    if answer.status_code != 200:
        raise ValueError(f"{url} answers {answer.status_code}: is this a SmartSpec server?")
    return answer.text
