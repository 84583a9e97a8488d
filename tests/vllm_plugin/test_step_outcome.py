"""What the controller learns of a step: which outputs count, and which draft tokens were tested."""

from types import SimpleNamespace

import numpy as np

from smartspec.control import BatchView, DrafterView, StepSeconds
from smartspec.vllm_plugin.step.batch import NO_PREFILL
from smartspec.vllm_plugin.step.decision import Decision, EmittedTokens, Step, make_outcome

NAMES, NEXT = ("a", "b"), 77  # the first draft token that is not verified, of each


def step(verified: int, invalid: dict[str, int] | None = None) -> Step:
    """Two requests, of whose drafts so many tokens are verified."""
    lengths = np.full(2, verified)
    view = BatchView(
        np.arange(2), np.full(2, 50), np.full(2, 8), drafters=(DrafterView(np.full(2, 8)),)
    )
    decision = Decision(NAMES, view, NO_PREFILL, lengths, 8, np.full(2, NEXT))
    output = SimpleNamespace(num_invalid_spec_tokens=invalid)
    return Step(
        output, 0.0, NO_PREFILL, dict.fromkeys(NAMES, verified), 2 * verified, 2, 100, 8, decision
    )


def outcome(of: Step, *sampled: list[int], stale: tuple[int, ...] = (0, 0)):
    """The model samples so for the two."""
    rows = dict(zip(NAMES, range(2), strict=True))
    requests = {
        name: SimpleNamespace(num_stale_output_tokens=n)
        for name, n in zip(NAMES, stale, strict=True)
    }
    output = SimpleNamespace(sampled_token_ids=sampled, req_id_to_index=rows)
    return make_outcome(of, EmittedTokens.of(of, output, requests), StepSeconds(0.0, 1.0, 0.0))


def test_an_output_from_before_a_preemption_teaches_nothing():
    found = outcome(step(2), [1, 2, 3], [1, 2, 3], stale=(1, 0))
    assert found.accepted.tolist() == [0, 2] and found.tested.tolist() == [0, 2]


def test_draft_tokens_that_broke_a_grammar_were_not_tested():
    found = outcome(step(4, {"a": 2}), [1, 2, 3], [1, 2, 3])
    assert found.accepted.tolist() == [2, 2] and found.tested.tolist() == [2, 3]


def test_what_follows_a_rejection_says_nothing_of_the_next_draft_token():
    (tests,) = outcome(step(2), [1, NEXT], [1, 2, NEXT]).free_tests
    assert tests.tested.tolist() == [0, 1] and tests.matched.tolist() == [False, True]
