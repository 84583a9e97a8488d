"""Questions to a server about itself: its models, and for a SmartSpec server its speculation
counters."""

import re

import httpx

from smartspec.workload.records import SpeculationCounters

COUNTERS = {
    "num_drafted_tokens": "smartspec_draft_tokens_total",
    "num_verified_tokens": "smartspec_verified_tokens_total",
    "num_accepted_tokens": "smartspec_accepted_tokens_total",
    "num_decode_rows": "smartspec_decode_rows_total",
}


def normalize_base_url(base_url: str) -> str:
    """The URL as used here: no trailing slash, no /v1. Raises ValueError for anything but an
    http(s) URL."""
    if not base_url.startswith(("http://", "https://")):
        raise ValueError(f"--base-url must look like http://127.0.0.1:8000, got {base_url!r}")
    return base_url.rstrip("/").removesuffix("/v1")


def find_model(base_url: str, model: str | None = None, api_key: str | None = None) -> str:
    """The model to request: the one named, else the server's first. Raises ValueError when there is
    none. A server that does not list its models is believed to have the one that is named."""
    answer = get(base_url, "/v1/models", api_key)
    try:
        names = _names(base_url, answer)
    except ValueError:
        if model is None:
            raise
        return model
    if model is not None and model not in names:
        raise ValueError(
            f"the server at {base_url} has no model {model!r}; it serves {', '.join(names)}"
        )
    return model if model is not None else names[0]


def _names(base_url: str, answer: httpx.Response) -> list[str]:
    if answer.status_code != 200:
        raise ValueError(
            f"{base_url}/v1/models answered {answer.status_code}: {answer.text[:200]}; name the "
            "model with --model"
        )
    try:
        names = [str(entry["id"]) for entry in answer.json()["data"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        said = answer.text[:200]
        raise ValueError(
            f"{base_url} is not an OpenAI-compatible server: /v1/models said {said!r}; name the "
            "model with --model"
        ) from error
    if not names:
        raise ValueError(f"the server at {base_url} serves no model; name the model with --model")
    return names


def read_policy(base_url: str, api_key: str | None = None) -> str | None:
    """Name of the speculation policy of a SmartSpec server; None for other servers, or when none
    answers."""
    try:
        answer = get(base_url, "/v1/speculation", api_key)
        return str(answer.json()["policy"]) if answer.status_code == 200 else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def read_counters(base_url: str, api_key: str | None = None) -> SpeculationCounters | None:
    """The speculation counters of a SmartSpec server at this moment; None for other servers, or
    when none answers."""
    try:
        answer = get(base_url, "/metrics", api_key)
        return parse_counters(answer.text) if answer.status_code == 200 else None
    except (ValueError, OverflowError):  # no server, or numbers that are none
        return None


def parse_counters(metrics: str) -> SpeculationCounters | None:
    """Counters from Prometheus text, summed over their labels; None unless all of them are there.
    Inside vLLM drafted tokens are not counted: those that were verified stand for them."""
    totals: dict[str, float] = {}
    for line in metrics.splitlines():
        name = line.partition(" ")[0].partition("{")[0]
        if name in COUNTERS.values():
            totals[name] = totals.get(name, 0.0) + float(line.rpartition(" ")[2])
    verified = COUNTERS["num_verified_tokens"]
    if verified in totals:
        totals.setdefault(COUNTERS["num_drafted_tokens"], totals[verified])
    if len(totals) < len(COUNTERS):
        return None
    return SpeculationCounters(**{field: int(totals[name]) for field, name in COUNTERS.items()})


def get(base_url: str, path: str, api_key: str | None) -> httpx.Response:
    """The answer of a server. Raises ValueError if none answers."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        return httpx.get(base_url + path, headers=headers, timeout=30.0)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = re.sub(r"\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
        raise ValueError(
            f"no server answers at {base_url} ({reason}); start one or correct the URL"
        ) from error
