"""Heads that compute what their target computes: whatever happens between their drafts, no token of
them is rejected.

A head knows of the last position no more than features, so it is exact only for a target that is
made for it. For an EAGLE head that is one of two layers, without the norms that the head lacks. The
first layer attends evenly to a token and the one before, and leaves alone the half of the hidden
state in which embeddings lie. So what it computes is linear in the newest token's embedding and
that half of the last position's hidden state, and is what the head's `fc` computes. The second
layer, with attention over the whole text, is the head's own. The head's KV has no entry of the
first token: no query sees that token's key, whose weight is zero in floating point. So a draft
token is rejected if a feature, the target's or the head's own, or an entry of the head's KV is
missing, stale or one place off.

EAGLE-3 and P-EAGLE heads norm what they read and cannot be exact by such means; those of EAGLE-3
have the drafter of EAGLE's.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from head_cases import LAST, SIZE
from test_head_drafter import layer_of
from tiny_engine import AnyLength, core_of, run
from tiny_models import VOCABULARY, as_loaded, tiny_llama
from torch import nn

from lab.heads.eagle.head import EagleConfig, EagleHead
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.drafting.head import runner as head_runner_module
from smartspec.engine.drafting.head.kinds import head_drafter
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.executor import LiveExecutor

HALF = SIZE // 2
FIRST_TOKEN = 0  # of every text
ONE, IS_FIRST = 0, 1  # places in an embedding: 1 for all tokens, 1 for the first alone
UNSEEN = 30.0  # query and key whose product is a weight of zero
# scale of the logits: so that nodes of a path do not stand before all other children of their
# parents
DOUBT = 0.1


def eagle_pair() -> tuple[LoadedModel, EagleHead]:
    model = tiny_llama(0)
    first, second = model.model.layers
    first.input_layernorm = second.input_layernorm = model.model.norm = nn.Identity()
    embedding = model.model.embed_tokens.weight
    embedding[:, [ONE, IS_FIRST]] = 0.0
    embedding[:, ONE] = embedding[FIRST_TOKEN, IS_FIRST] = 1.0
    embedding[:, HALF:] = 0.0
    model.lm_head.weight *= DOUBT
    for layer in (first, second):
        layer.self_attn.o_proj.weight[:HALF] = layer.mlp.down_proj.weight[:HALF] = 0.0
    first.self_attn.q_proj.weight[:] = first.mlp.down_proj.weight[:] = 0.0
    hide_first_token(second.self_attn)
    layer = layer_of(model)
    head = EagleHead(EagleConfig(layer, LAST)).requires_grad_(False).eval()
    head.layers[0].load_state_dict(second.state_dict())
    num_groups = layer.num_attention_heads // layer.num_key_value_heads
    values = first.self_attn.v_proj.weight.view(-1, layer.head_dim, SIZE).repeat_interleave(
        num_groups, dim=0
    )
    # of two tokens' embeddings
    of_each = first.self_attn.o_proj.weight @ values.reshape(SIZE, SIZE) / 2
    head.fc.weight[:, :SIZE] = torch.eye(SIZE) + of_each
    head.fc.weight[:, SIZE:] = torch.where(torch.arange(SIZE) < HALF, of_each, 0.0)
    return replace(as_loaded(model), windows=(2, None)), head


def hide_first_token(attention: nn.Module) -> None:
    """In the pair of the slowest rotary frequency, which a short text hardly turns, all queries are
    against its key."""
    size = attention.head_dim
    queries, keys = (p.weight.view(-1, size, SIZE) for p in (attention.q_proj, attention.k_proj))
    for rows in (queries, keys):
        rows[:, [size // 2 - 1, size - 1]] = 0.0
    queries[:, size // 2 - 1, ONE], keys[:, size // 2 - 1, IS_FIRST] = UNSEEN, -UNSEEN


class Checking(LiveExecutor):
    """Expects of every draft that it was right to its end: after the last accepted node there is
    none."""

    num_drafts = num_deep = num_compacted = 0

    def verify(self, batch, drafts):
        result = super().verify(batch, drafts)
        for draft, verification in zip(drafts, result.decoding, strict=True):
            nodes = verification.accepted_nodes or range(verification.num_accepted)
            assert not (draft.parents == (nodes[-1] if nodes else -1)).any(), (draft, verification)
            self.num_drafts += len(draft) > 0
            self.num_deep += len(nodes) > 2
            self.num_compacted += tuple(nodes) != tuple(range(len(nodes)))
        return result


class Counting(LiveExecutor):
    """Counts drafts whose first token was tried, and those that were right to their end."""

    num_tried = num_right = 0

    def verify(self, batch, drafts):
        result = super().verify(batch, drafts)
        self.num_tried += sum(len(draft) > 0 for draft in drafts)
        pairs = [
            (len(draft), each.num_accepted)
            for draft, each in zip(drafts, result.decoding, strict=True)
        ]
        self.num_right += sum(length == accepted > 0 for length, accepted in pairs)
        return result


def make_core(
    loaded: LoadedModel,
    head: nn.Module,
    num_blocks: int,
    pause: float,
    max_width: int,
    seed: int,
    make_executor=Checking,
    foresees: bool = False,
) -> EngineCore:
    target = ModelRunner(loaded, num_slots=4, max_len=128, taps=LAST)
    drafter = head_drafter(
        head, target, name="head", num_slots=4, is_rounded=False, foresees=foresees
    )
    executor = make_executor(target, (drafter,))
    controller = AnyLength(seed, pause, max_width)
    return core_of(executor, controller, num_blocks, max_draft_tokens=5 if max_width == 1 else 12)


def generate(core: EngineCore, temperature: float = 0.0) -> list[Request]:
    """To the end, prompts whose beginning is shared."""
    random = np.random.default_rng(5)
    shared = [FIRST_TOKEN, *random.integers(1, VOCABULARY, 8).tolist()]
    params = SamplingParams(max_tokens=40, temperature=temperature)
    prompts = [
        shared + random.integers(1, VOCABULARY, random.integers(1, 30)).tolist() for _ in range(9)
    ]
    return run(core, [Request(i, prompt, params, seed=i) for i, prompt in enumerate(prompts)])


@pytest.fixture
def pair() -> Callable[[], tuple[LoadedModel, nn.Module]]:
    """Makes a target and a head that is exact for it."""
    return eagle_pair


@pytest.mark.parametrize("max_width", [1, 4])
def test_every_draft_is_accepted_to_its_end(pair, max_width, monkeypatch):
    """Chains and trees of other lengths in every step, few and many steps without drafts,
    preemption, prefix hits, catch-up in one pass and in several."""
    num_drafts = num_deep = num_compacted = 0
    for seed, (pause, chunk) in enumerate([(0.0, 5), (0.4, 128), (0.9, 5)]):
        monkeypatch.setattr(head_runner_module, "MAX_CHUNK", chunk)
        core = make_core(*pair(), 24, pause, max_width, seed)
        requests = generate(core)
        assert any(r.num_cached_tokens for r in requests) and any(
            r.num_preemptions for r in requests
        )
        num_drafts += core.executor.num_drafts
        num_deep += core.executor.num_deep
        num_compacted += core.executor.num_compacted
    assert num_drafts > 150 and num_deep > 40 and (max_width == 1 or num_compacted > 10)


def test_what_is_foreseen_of_sampled_tokens_is_accepted_and_changes_no_text():
    """Chains of a head that knows the target's distributions: likely tokens are often not drawn,
    those it foresees are, as far as they have numbers of their own."""
    texts, shares = [], []
    for pause, foresees in [(1.0, False), (0.0, False), (0.0, True)]:
        core = make_core(*eagle_pair(), 80, pause, 1, 0, Counting, foresees)
        texts.append(
            [request.token_ids.tolist() for request in generate(core, temperature=4 * DOUBT)]
        )
        shares.append(core.executor.num_right / max(core.executor.num_tried, 1))
    assert texts[0] == texts[1] == texts[2]
    assert shares[1] < 0.85 and shares[2] > shares[1] + 0.1
