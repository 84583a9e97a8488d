"""Long prompts and a large draft model, played in whole: what catching up costs is earned back."""

from smartspec.sim.scenario import Scenario, simulate


def test_a_busy_server_with_long_prompts_gains_from_a_large_draft_model():
    """It gained 0.5 % when a step was charged for a share of the tokens instead of a share of the pass."""
    load = {"rate": 2.2, "num_requests": 100, "prompt_tokens": 8000, "output_tokens": 300}
    drafts = {"draft_model": "llama-3.2-1b", "acceptance": "0.6/8"}
    off, goodput = (
        simulate(Scenario(policy=policy, **load, **drafts)).summary.end_to_end_seconds.mean
        for policy in ("off", "goodput")
    )
    assert goodput < 0.95 * off
