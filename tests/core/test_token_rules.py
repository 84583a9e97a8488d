"""Rules on single tokens, made ready once."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from smartspec.core.sampling_params import SamplingParams
from smartspec.core.token_rules import token_rules

TOKENS = st.lists(st.integers(0, 2), max_size=7)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=6), TOKENS)
def test_what_completes_a_bad_word(words, text):
    completing = {
        token for token in range(3) if any([*text, token][-len(word) :] == word for word in words)
    }
    rules = token_rules((), (), words)
    assert set(rules.completing(tuple(text))) == completing
    assert set(rules.completing(tuple(text[max(0, len(text) - rules.longest) :]))) == completing, (
        "no more is needed"
    )


def test_lists_hold_each_token_once():
    rules = token_rules((5, 2, 5, 2), ((3, 1.0), (1, -2.0), (3, 4.0)), [(1, 2), (1, 2)])
    assert np.flatnonzero(~rules.is_banned).tolist() == [2, 5] and len(rules.is_banned) == 6
    assert rules.biased.tolist() == [3, 1] and rules.biases.tolist() == [4.0, -2.0]
    assert rules.completing((1,)) == [2]
    assert token_rules((), (), ()).is_banned is None


def test_they_are_made_once_for_all_steps():
    params = SamplingParams(allowed_token_ids=(1,) * 1000)
    assert params.token_rules is params.token_rules
    assert replace(params, logprobs=1).token_rules is not params.token_rules
    assert replace(params, logprobs=1) != params and hash(params) == hash(
        SamplingParams(allowed_token_ids=(1,) * 1000)
    )
