"""Long prompts and a large draft model, played in whole: what draft prefill costs is earned
back."""

from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import simulate


def mean_latency(policy: str, acceptance: str, load: dict) -> float:
    scenario = Scenario(policy=policy, draft_model="llama-3.2-1b", acceptance=acceptance, **load)
    return simulate(scenario).summary.end_to_end_seconds.mean


def test_a_busy_server_with_long_prompts_gains_from_a_large_draft_model():
    """It gained 0.5 % when a step was charged for a share of the tokens instead of a share of the
    pass."""
    load = {"rate": 1.8, "num_requests": 100, "prompt_tokens": 8000, "output_tokens": 300}
    assert mean_latency("goodput", "0.6/8", load) < 0.985 * mean_latency("off", "0.6/8", load)


def test_drafts_do_not_hold_up_a_closed_loop_of_prefills():
    """Priced as in steps without prefill, of which there were hardly any, they made latency 3 to 5
    % longer than off's, and those of perfect estimates too."""
    load = {"batch": 32, "num_requests": 1200, "prompt_tokens": 1000, "output_tokens": 20}
    means = [
        simulate(Scenario(policy=policy, acceptance="0.9", **load)).summary.end_to_end_seconds.mean
        for policy in ("goodput", "off")
    ]
    assert means[0] < 1.02 * means[1]


def test_a_large_draft_model_is_not_prefilled_for_requests_that_end_at_once():
    """Spread over 160 steps whatever happens, draft prefill of these prompts made latency 16 %
    longer than off's; where answers were first believed to be of 320 tokens, 2.5 and 5 %. A server
    at 95 % load multiplies what a run of random arrivals loses, so the mean of several counts."""
    load = {"rate": 16, "num_requests": 300, "prompt_tokens": 2000, "output_tokens": 24}
    ratios = [
        mean_latency("goodput", "0.7/8", load | {"seed": seed})
        / mean_latency("off", "0.7/8", load | {"seed": seed})
        for seed in (1, 2, 3)
    ]
    assert sum(ratios) / len(ratios) < 1.03
