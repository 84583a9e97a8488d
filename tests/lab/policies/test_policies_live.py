"""Every policy on the live engine with the default model and a real drafter: it drafts, and no
answer changes.

The head that comes with the model makes trees and chains; the model as its own draft model makes
chains, all of which are accepted. None measures a profile.
"""

from functools import cache

import pytest
from real_prompts import PROMPTS, chats
from tiny_engine import finish, outputs

from smartspec.core.policy_names import all_policies
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.drafting.shipped.head import SHIPPED
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.runtime import build
from smartspec.engine.runtime.config import EngineConfig

pytestmark = pytest.mark.usefixtures("loaded_once")

K = 10
MAX_TOKENS = 16
# dsde: the simulator alone
NAMES = [name for name in all_policies(K) if name not in ("off", "dsde")]


@cache
def generate(policy: str, *drafters: str) -> tuple[list[list[int]], int]:
    """Tokens of the answers to three prompts, served together, and how many draft tokens were
    verified."""
    config = EngineConfig(
        policy=policy,
        drafters=drafters,
        max_batch=3,
        max_model_len=512,
        max_draft_tokens=K,
        strict=True,
        device="cpu",
    )
    engine = build.build_engine(config)
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
    prompts = chats(PROMPTS[:3])
    requests = [Request(index, tokens, params, seed=index) for index, tokens in enumerate(prompts)]
    steps = finish(engine.core, requests)
    return outputs(requests), sum(step.num_verified_tokens for step in steps)


@pytest.mark.parametrize(
    ("drafter", "least"),
    [(SHIPPED, 0), pytest.param(DEFAULT_MODEL, MAX_TOKENS, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("policy", NAMES)
def test_answers_are_those_of_plain_decoding(policy, drafter, least):
    answers, verified = generate(policy, drafter)
    assert answers == generate("off")[0]
    assert verified > least
