"""Greedy output of the real model: the tokens that transformers gives.

Every policy and drafter is compared with plain decoding in test_real_exactness.py, and here plain
decoding and what is most unlike it with transformers. No profile is measured: what is decided
follows from the test alone.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import without_kernels
from default_model import load_once, stock_model
from real_prompts import PROMPTS, chats
from tiny_engine import RandomPlans, requests_of, run
from tiny_engine import outputs as outputs_of

from smartspec.core.request import Request
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.models.load import load_model
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime import build
from smartspec.engine.runtime.build import Engine, build_engine
from smartspec.engine.runtime.config import EngineConfig
from smartspec.workload.prompts import draw_prompts, shipped_prompts

pytestmark = pytest.mark.usefixtures("loaded_once")

SELF_DRAFT = (DEFAULT_MODEL,)
# Two candidates this close are a tie in fp32: passes of different sizes sum in different orders.
TIE_LOGITS = 1e-3


class RandomLengths(RandomPlans):
    """use_model: the drafter is a model, whose drafts are verified whole."""

    def __init__(self, use_model: bool):
        super().__init__(pause=0.3)
        self.use_model = use_model

    def cut(self, plan, drafted):
        return drafted.lengths if self.use_model else self.random.integers(0, drafted.lengths + 1)


def engine_of(**options) -> Engine:
    """With inputs in fp32, as transformers computes."""
    options = {"max_batch": 4, "strict": True, "device": "cpu", "activations": "fp32"} | options
    return build_engine(EngineConfig(**options))


def generate(engine: Engine, prompts: list[list[int]], max_tokens: int) -> list[Request]:
    requests = run(engine.core, requests_of(prompts, max_tokens=max_tokens))
    assert engine.core.scheduler.blocks.num_used_blocks == 0
    return requests


def reference_outputs(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """transformers.generate on the stock model, one prompt at a time."""
    model = stock_model()
    options = {
        "max_new_tokens": max_tokens,
        "min_new_tokens": max_tokens,
        "do_sample": False,
        "eos_token_id": None,
    }
    outputs = []
    for prompt in prompts:
        token_ids = torch.tensor([prompt])
        # Without a mask transformers would take <|im_end|> inside the prompt for padding.
        text = model.generate(
            token_ids, attention_mask=torch.ones_like(token_ids), pad_token_id=2, **options
        )
        outputs.append(text[0, len(prompt) :].tolist())
    return outputs


def assert_same_but_for_ties(
    prompts: list[list[int]], outputs: list[list[int]], expected: list[list[int]]
) -> int:
    """Equal token for token; at a difference the stock model must see a tie. Returns the number of
    such ties."""
    num_ties, model = 0, stock_model()
    for prompt, output, wanted in zip(prompts, outputs, expected, strict=True):
        if output == wanted:
            continue
        first = next(i for i, (a, b) in enumerate(zip(output, wanted, strict=True)) if a != b)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + wanted[:first]])).logits[0, -1]
        gap = abs(float(logits[output[first]] - logits[wanted[first]]))
        assert gap < TIE_LOGITS, (
            f"token {first}: {output[first]} instead of {wanted[first]}, {gap:.4f} apart"
        )
        num_ties += 1
    return num_ties


@pytest.fixture(scope="module")
def cases():
    """Prompts and what transformers.generate answers: the two best candidates are never closer than
    0.008, 200 times what fp32 passes of different sizes differ by, so that no machine's kernels
    turn one of these tokens."""
    prompts = chats(PROMPTS[1::2])
    return prompts, reference_outputs(prompts, 24)


@pytest.mark.parametrize(
    ("policy", "drafters"),
    [
        ("off", ()),
        ("goodput", ("prompt-lookup", *SELF_DRAFT)),
    ],
)
def test_policies_give_the_tokens_of_transformers(cases, policy, drafters):
    prompts, expected = cases
    engine = engine_of(policy=policy, drafters=drafters, kv_tokens=2048)
    outputs = outputs_of(generate(engine, prompts, 24))
    assert outputs == expected


def test_a_machine_without_our_kernels_gives_the_same_tokens(cases, monkeypatch):
    without_kernels(monkeypatch)
    monkeypatch.setattr(build, "load_model", load_model)  # which fuses what it finds kernels for
    prompts, expected = cases
    engine = engine_of(policy="fixed:4", drafters=("prompt-lookup", "recycling"))
    assert set(engine.kernels.values()) == {"torch's, because this machine has none"}
    outputs = outputs_of(generate(engine, prompts, 24))
    assert outputs == expected


@pytest.mark.parametrize("use_model", [False, True])
def test_lengths_that_change_every_step_under_memory_pressure(cases, use_model):
    prompts, expected = cases
    drafters = SELF_DRAFT if use_model else ("prompt-lookup",)
    engine = engine_of(drafters=drafters, kv_tokens=224)
    engine.core.controller = RandomLengths(use_model)
    requests = generate(engine, prompts, 24)
    assert outputs_of(requests) == expected
    assert sum(r.num_preemptions for r in requests) > 0
    assert engine.core.controller.num_tested > 20
    if use_model:
        assert engine.core.controller.num_accepted == engine.core.controller.num_tested


@pytest.mark.slow
def test_perplexity_is_that_of_the_dequantised_model_and_in_8_bits_hardly_higher():
    forms = [load_once(DEFAULT_MODEL, device="cpu", activations=form) for form in ("fp32", "int8")]
    runners = [ModelRunner(loaded, num_slots=1, max_len=1024) for loaded in forms]
    stock, total, num_tokens = stock_model(), np.zeros(3), 0
    for prompt in shipped_prompts():
        token_ids = forms[0].tokenizer(prompt.text)["input_ids"][:1024]
        following = torch.tensor(token_ids[1:])
        segment = Segment(0, 0, np.array(token_ids[:-1], dtype=np.int32), len(following))
        with torch.inference_mode():
            logits = [
                *(runner.forward([segment]) for runner in runners),
                stock(torch.tensor([token_ids[:-1]])).logits[0],
            ]
        total += [float(F.cross_entropy(each, following, reduction="sum")) for each in logits]
        num_tokens += len(following)
    ours, rounded, theirs = np.exp(total / num_tokens)
    print(
        f"perplexity {ours:.6f}, in 8 bits {rounded:.6f}, transformers {theirs:.6f}, {num_tokens} "
        "tokens"
    )
    assert abs(ours / theirs - 1) < 5e-5
    assert rounded / ours - 1 < 5e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "drafters"),
    [
        ("off", ()),
        ("fixed:5", ("prompt-lookup",)),
        ("goodput", ("prompt-lookup",)),
        ("goodput", ("prompt-lookup", "recycling")),
        ("fixed:3", SELF_DRAFT),
        ("goodput", SELF_DRAFT),
        ("random", ("prompt-lookup",)),
        ("random", SELF_DRAFT),
    ],
)
def test_hundred_real_prompts(hundred, policy, drafters):
    prompts, expected = hundred
    engine = engine_of(
        policy="fixed:1" if policy == "random" else policy,
        drafters=drafters,
        max_batch=EngineConfig.max_batch,
    )
    if policy == "random":
        engine.core.controller = RandomLengths(drafters == SELF_DRAFT)
    requests = generate(engine, prompts, 32)
    num_ties = assert_same_but_for_ties(prompts, outputs_of(requests), expected)
    print(f"{policy} {drafters}: {len(prompts)} prompts, {num_ties} differ at a tie")
    assert num_ties <= 2
    if policy == "random" and drafters == SELF_DRAFT:
        assert engine.core.controller.num_accepted == engine.core.controller.num_tested


@pytest.fixture(scope="module")
def hundred():
    drawn = draw_prompts(shipped_prompts(), 100, np.random.default_rng(0))
    prompts = chats([prompt.text for prompt in drawn])
    return prompts, reference_outputs(prompts, 32)
