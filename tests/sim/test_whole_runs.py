"""Whole runs: draft prefill is earned back, a bad start is no end of drafts, and requests that
draft badly do not wait."""

import numpy as np

from smartspec.control.goodput.policy import GoodputSettings
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import simulate

LARGE = {"draft_model": "llama-3.2-1b"}


def latency(policy: str, **load):
    return simulate(Scenario(policy=policy, **load)).summary.end_to_end_seconds


def ratio(other: str = "off", **load) -> float:
    """The mean latency of goodput as a share of the other policy's."""
    return latency("goodput", **load).mean / latency(other, **load).mean


def fairness_gains(**load) -> tuple[float, float]:
    """p99 and mean of latency as shares of those where tokens of all requests count alike."""
    fair, alike = (
        latency("goodput", goodput=settings, acceptance="0.9/8,0.4/8", **load)
        for settings in (GoodputSettings(), GoodputSettings(fairness=0.0))
    )
    return fair.p99 / alike.p99, fair.mean / alike.mean


def test_a_busy_server_with_long_prompts_gains_from_a_large_draft_model():
    """It gained 0.5 % when a step was charged for a share of the tokens instead of a share of the
    pass."""
    load = {"rate": 1.8, "num_requests": 100, "prompt_tokens": 8000, "output_tokens": 300}
    assert ratio(acceptance="0.6/8", **LARGE, **load) < 0.985


def test_drafts_do_not_hold_up_a_closed_loop_of_prefills():
    """Priced as in steps without prefill, of which there were hardly any, they made latency 3 to 5
    % longer than off's, and those of perfect estimates too."""
    load = {"batch": 32, "num_requests": 1200, "prompt_tokens": 1000, "output_tokens": 20}
    assert ratio(acceptance="0.9", **load) < 1.02


def test_a_large_draft_model_is_not_prefilled_for_requests_that_end_at_once():
    """Spread over 160 steps whatever happens, draft prefill of these prompts made latency 16 %
    longer than off's; where answers were first believed to be of 320 tokens, 2.5 and 5 %. A server
    at 95 % load multiplies what a run of random arrivals loses, so the mean of several counts."""
    load = {"rate": 16, "num_requests": 300, "prompt_tokens": 2000, "output_tokens": 24}
    ratios = [ratio(acceptance="0.7/8", seed=seed, **LARGE, **load) for seed in (1, 2, 3)]
    assert np.mean(ratios) < 1.03


def test_a_bad_start_is_not_the_end_of_drafts():
    """One token a step makes latency 8 to 9 % shorter. The first drafts are too long and lose. Then
    there were none for hundreds of steps, and later none were worth a draft prefill: of six such
    runs three lost 3 to 8 % against fixed:1."""
    load = {"host_seconds": 0.0003, "prompt_tokens": 200, "output_tokens": 250}
    for rate, num_requests, seed in ((16, 128, 0), (16, 128, 1), (8, 64, 5)):
        arrivals = {"rate": rate, "num_requests": num_requests, "seed": seed}
        assert ratio("fixed:1", acceptance="0.4", **arrivals, **LARGE, **load) < 1.02


def test_the_longest_waits_become_shorter_in_an_open_system():
    """Where tokens count alike, p99 is 1 to 9 % longer, and the mean 3 %. Between seeds the mean
    differs by half a percent: of two it is known well enough for the bound."""
    load = {"rate": 20, "num_requests": 250, "prompt_tokens": 500, "output_tokens": 200}
    gains = [fairness_gains(seed=seed, **load) for seed in range(2)]
    assert np.mean(gains, axis=0).max() < 0.98


def test_where_requests_replace_each_other_it_costs_nothing():
    load = {"batch": 16, "num_requests": 64, "prompt_tokens": 500, "output_tokens": 100}
    assert fairness_gains(**load)[1] < 1.002
