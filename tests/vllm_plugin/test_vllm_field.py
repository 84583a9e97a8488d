"""Every policy that can run inside vLLM does: texts stay those of the target, and drafts are
made."""

import pytest
from toy_engine import make_config, start

from smartspec.core.policy_names import all_policies

K = 4
NAMES = [name for name in all_policies(K) if name not in ("off", "dsde")]


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
@pytest.mark.parametrize("policy", NAMES)
def test_texts_are_those_of_the_target_under_every_policy(policy, method, tmp_path):
    config = make_config(
        tmp_path, method=method, num_speculative_tokens=K, settings={"policy": policy}
    )
    engine = start(config, acceptance=0.7)
    engine.serve(*range(4), max_tokens=60)
    assert sum(map(sum, engine.verified_lengths)) > 0
