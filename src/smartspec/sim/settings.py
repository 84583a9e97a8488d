"""The settings of a simulated run: each with its default, its range and its help, stated once.

`smartspec simulate` makes its options of this record, so it imports nothing that takes time.
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from typing import Annotated, Any, get_type_hints

MAX_REQUESTS = 10_000_000
LATER_CHILD_SHARE = 0.2
_FACTORS = (1e-6, 1_000_000)


@dataclass(frozen=True)
class Setting:
    """help: for a person. least, largest: values outside are typing errors, far beyond anything
    that exists; they would overflow or fill the memory. option, read: name of the option and what
    makes a value of its text, for settings that people write otherwise than the record holds them.
    shown: its default, as people write it."""

    help: str
    least: float | None = None
    largest: float | None = None
    option: str | None = None
    read: Callable[[str], Any] | None = None
    shown: str | None = None


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{option} {text!r} is not a number") from None


def _read_tpot_targets(text: str) -> tuple[float, ...]:
    return tuple(_number("--tpot-target-ms", part) / 1000 for part in text.split(","))


def _read_ttft_target(text: str) -> float:
    return _number("--ttft-target-ms", text) / 1000


def _read_profile(text: str) -> float | str:
    return (
        text if text == "no-context" or text.startswith("drafts:") else _number("--profile", text)
    )


def _read_throttle(text: str) -> tuple[tuple[float, float], ...]:
    second, colon, factor = text.partition(":")
    if not colon:
        raise ValueError(f"--throttle {text!r} is not a second and a factor, like 60:1.3")
    return ((_number("--throttle", second), _number("--throttle", factor)),)


@dataclass(frozen=True)
class ScenarioSettings:
    """Exactly one of rate, trace and batch says how requests come. policy: see Scenario; a
    comparison has several."""

    policy: str = "goodput"
    rate: Annotated[float | None, Setting("Poisson arrivals, requests per second.")] = None
    trace: Annotated[
        str | None, Setting("Replay a CSV file: arrival_s,prompt_tokens,output_tokens.")
    ] = None
    batch: Annotated[
        int | None, Setting("Number of requests under way at all times.", 1, MAX_REQUESTS)
    ] = None
    num_requests: Annotated[
        int | None,
        Setting(
            "Requests (default 1000, or all that come before --seconds; with a trace: all; beyond "
            "its end it starts over).",
            1,
            MAX_REQUESTS,
        ),
    ] = None
    seconds: Annotated[
        float | None, Setting("Only requests that arrive before this second.", 1e-6, 10**9)
    ] = None
    time_scale: Annotated[float, Setting("Replay the trace this many times faster.")] = 1.0
    prompt_tokens: Annotated[
        int, Setting("Mean prompt length (without a trace).", 1, 1_000_000)
    ] = 512
    output_tokens: Annotated[
        int, Setting("Mean output length (without a trace).", 1, 1_000_000)
    ] = 200
    hardware: Annotated[
        str,
        Setting(
            "a100-80g, h100, h200, b200, l40s, a40, l4, a JSON file of measured curves, or a "
            ".jsonl file: the decision log of a live run, for its profile."
        ),
    ] = "h100"
    model: Annotated[str, Setting("8b, 70b, or a shape like qwen-2.5-32b or mixtral-8x7b.")] = "8b"
    host: Annotated[
        str,
        Setting(
            "What the target runs on: plain accelerators; or, of the lab, memory-side or papi; "
            "offloaded-experts or prefetched-experts; expert-parallel or speculative-moe; "
            "loongserve; block-chain or blockllm."
        ),
    ] = "plain"
    tensor_parallel: Annotated[int, Setting("Devices of the engine.", 1, 1024)] = 1
    drafter: Annotated[
        str,
        Setting(
            "model, depth by depth; head, which makes trees too; lookup, which costs nothing; or "
            "with --texts a drafter without a model: prompt-lookup, recycling or module:Class."
        ),
    ] = "model"
    draft_model: Annotated[
        str | None, Setting("Shape of the draft model (default: an EAGLE head of the model).")
    ] = None
    draft_tensor_parallel: Annotated[
        int | None,
        Setting("Devices of the draft model (default: as many as the target's).", 1, 1024),
    ] = None
    drafting: Annotated[
        str,
        Setting(
            "serial; or, of the lab, parallel: a draft model drafts on a device of its own while "
            "the target verifies (PEARL), or layer-parallel: its layers run side by side on its "
            "devices, not exactly (EasySpec)."
        ),
    ] = "serial"
    acceptance: Annotated[
        str,
        Setting(
            "Mean acceptance of a draft token: 0.7; with classes of requests 0.9,0.4; changing at "
            "second 600 0.8>0.4@600; with spread over requests (and over tokens) 0.7/8 (0.7/8/4), "
            "small numbers for large spread; eagle1 or eagle3, falling with depth as those heads "
            "do; or a .jsonl file, the decision log of a live run: request i meets what the log's "
            "request i mod N met."
        ),
    ] = "0.7/8"
    texts: Annotated[
        str | None,
        Setting(
            "JSONL of prompt_token_ids and output_token_ids, in which a drafter without a model "
            "drafts. It is run as in the engine; its own time is not charged. Request i meets text "
            "i mod N."
        ),
    ] = None
    later_child_share: Annotated[
        float,
        Setting(
            "Chance that a child is right if all likelier children are wrong (drafter head).", 0, 1
        ),
    ] = LATER_CHILD_SHARE
    found_share: Annotated[
        float, Setting("Share of output positions at which lookup finds a draft.", 0, 1)
    ] = 1.0
    tpot_targets: Annotated[
        tuple[float, ...],
        Setting(
            "Milliseconds per output token that requests want, in turn: 20,50.",
            option="tpot_target_ms",
            read=_read_tpot_targets,
        ),
    ] = ()
    ttft_target: Annotated[
        float | None,
        Setting(
            "Milliseconds to the first token that requests want.",
            option="ttft_target_ms",
            read=_read_ttft_target,
        ),
    ] = None
    max_draft_tokens: Annotated[int, Setting("Longest draft of a request.", 1, 1000)] = 8
    max_batch: Annotated[int, Setting("Requests that run at once.", 1, 100_000)] = 256
    max_batched_tokens: Annotated[int, Setting("Ordinary tokens per step.", 1, 10**9)] = 2048
    kv_tokens: Annotated[
        # at least one block
        int | None, Setting("KV memory in tokens (default: what the devices hold).", 16, 10**12)
    ] = None
    captured_graphs: Annotated[bool, Setting("Pad passes to the sizes of captured graphs.")] = False
    host_seconds: Annotated[
        float, Setting("Seconds of a step outside the passes of models.", 0, 10_000)
    ] = 0.001
    jitter: Annotated[
        float, Setting("Noise of times: standard deviation of their logarithm.", 0, 10)
    ] = 0.02
    profile: Annotated[
        float | str,
        Setting(
            "Error of the start-up profile: a factor, drafts:FACTOR or no-context.",
            read=_read_profile,
            shown="1",
        ),
    ] = 1.0
    throttle: Annotated[
        tuple[tuple[float, float], ...],
        Setting(
            "Passes take longer from a second on: 60:1.3, 1.3 times as long from second 60.",
            read=_read_throttle,
        ),
    ] = ()

    def check_limits(self) -> None:
        """ValueError naming the setting that is too small, too large, or no number at all; None is
        none of these."""
        for field, _, setting in stated_settings():
            if setting.least is not None:
                _check(field.name, getattr(self, field.name), setting.least, setting.largest)
        if self.profile != "no-context":
            _check(
                "profile",
                _number("--profile", str(self.profile).removeprefix("drafts:")),
                *_FACTORS,
            )
        for second, factor in self.throttle:
            _check("the second of throttle", second, 0, 10**9)
            _check("the factor of throttle", factor, *_FACTORS)


def stated_settings() -> list[tuple[Field, Any, Setting]]:
    """The fields that people set as options, with their types and what is told of them."""
    hints = get_type_hints(ScenarioSettings, include_extras=True)
    stated = [
        (field, hints[field.name]) for field in fields(ScenarioSettings) if field.name != "policy"
    ]
    return [(field, hint.__origin__, hint.__metadata__[0]) for field, hint in stated]


def _check(name: str, value: float | None, least: float, largest: float) -> None:
    if value is not None and not least <= value <= largest:  # as it is for a NaN
        raise ValueError(f"{name} must be at least {least} and at most {largest}, got {value}")
