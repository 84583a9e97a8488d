import pytest

from smartspec.engine.runtime.config import EngineConfig


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        ("perfect-estimates", "only in the simulator"),
        ("uniform:1,30", "more than the 10 draft tokens"),
        ("uniform:", "name lengths to choose from"),
        ("best", "use one of goodput, off"),
    ],
)
def test_policies_this_engine_cannot_run_are_refused_with_the_reason(policy, named):
    with pytest.raises(ValueError, match=named):
        EngineConfig(policy=policy)


def test_off_is_off():
    """No drafter proposes or remembers, and no draft model is loaded, where the policy never
    drafts."""
    off = EngineConfig(policy="off", drafters=("prompt-lookup", "some/model"))
    assert off.active_drafters == ()


@pytest.mark.parametrize(
    "policy", ["goodput", "off", "fixed:10", "uniform:1,3,5", "hf", "specdec++:0.7", "adaserve"]
)
def test_policies_it_can_run(policy):
    assert EngineConfig(policy=policy).policy == policy
