"""A trained head as drafter, on tiny models: whatever it drafts, outputs are those of plain
decoding."""

import numpy as np
import pytest
import torch
from compiled import attend_in_torch, need_kernels
from static_tree import best_tree
from tiny_engine import GREEDY_AND_SAMPLED, RandomPlans, core_of, generate, outputs
from tiny_models import VOCABULARY, tiny_llama, tiny_runner
from transformers import LlamaConfig, PreTrainedModel

from smartspec.core.batch import Batch, Draft, Verification
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.attention.tree_mask import tree_mask
from smartspec.engine.drafting.head import native_head
from smartspec.engine.drafting.head import runner as head_runner
from smartspec.engine.drafting.head.drafter import HeadDrafter
from smartspec.engine.drafting.head.eagle3 import Eagle3Head, HeadConfig
from smartspec.engine.drafting.head.native_head import NativeHead
from smartspec.engine.drafting.head.runner import HeadRunner
from smartspec.engine.runtime.executor import LiveExecutor
from smartspec.sim.world.trees import grow_trees

TAPS = (1, 2)
NUM_DRAFT_TOKENS = 40


def layer_of(model: PreTrainedModel) -> LlamaConfig:
    """The shape of a head's layer that is the model's own."""
    return LlamaConfig(
        **model.config.to_dict() | {"num_hidden_layers": 1, "tie_word_embeddings": False}
    )


def random_head(seed: int = 0, sure: bool = False, **variants: bool) -> Eagle3Head:
    """sure: as trained heads often are, so that its trees become deep."""
    torch.manual_seed(seed)
    layer = layer_of(tiny_llama())
    head = Eagle3Head(HeadConfig(layer, NUM_DRAFT_TOKENS, TAPS, layer.hidden_size, **variants))
    ids = np.sort(np.random.default_rng(seed).choice(VOCABULARY, NUM_DRAFT_TOKENS, replace=False))
    head.d2t.copy_(torch.from_numpy(ids) - torch.arange(NUM_DRAFT_TOKENS))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    if sure:
        head.lm_head.weight.data.mul_(5.0)
    return head.requires_grad_(False).eval()


def make_core(
    pause: float = 0.4,
    num_blocks: int = 60,
    seed: int = 0,
    max_width: int = 1,
    max_draft_tokens: int = 5,
    **variants: bool,
) -> EngineCore:
    target = tiny_runner(taps=TAPS)
    head = HeadRunner(random_head(**variants), target, name="head", num_slots=4, is_rounded=False)
    executor = LiveExecutor(target, (HeadDrafter(head, target, 4, "head"),))
    return core_of(executor, RandomPlans(seed, pause, max_width), num_blocks, max_draft_tokens)


@pytest.fixture(params=["the kernels of this machine", "torch", "small passes"])
def attention(request, monkeypatch):
    if request.param == "small passes":
        monkeypatch.setattr(head_runner, "MAX_CHUNK", 5)
        monkeypatch.setattr(native_head, "MIN_ROWS", 2)
    if request.param == "torch":
        attend_in_torch(monkeypatch)


def let_some_be_right(core: EngineCore, expected: list[list[int]]) -> None:
    """Along some path of every draft, the first tokens become those that the request will have; an
    untrained head is hardly ever right."""
    (drafter,) = core.executor.drafters
    draft_trees, random = drafter.draft_trees, np.random.default_rng(2)

    def partly_right(batch, *rest):
        made = draft_trees(batch, *rest)
        for request, draft in zip(batch.decoding, made, strict=True):
            node = -1
            for token_id in expected[request.request_id][request.num_output_tokens :][
                : random.integers(0, 4)
            ]:
                if len(children := np.flatnonzero(draft.parents == node)):
                    node = int(random.choice(children))
                    draft.token_ids[node] = token_id
        return made

    drafter.draft_trees = partly_right


TREES = {"max_width": 6, "max_draft_tokens": 12, "sure": True}


@pytest.mark.usefixtures("attention")
@GREEDY_AND_SAMPLED
@pytest.mark.parametrize("num_blocks", [60, 24])
@pytest.mark.parametrize("shape", [{}, TREES], ids=["chains", "trees"])
def test_outputs_are_those_of_plain_decoding(temperature, num_blocks, shape):
    """Other lengths and shapes in every step, trees cut at random after drafting, through
    preemption, prefix hits and catch-up."""
    expected = outputs(generate(make_core(pause=1.0), temperature))
    for seed in range(2):
        core = make_core(num_blocks=num_blocks, seed=seed, **shape)
        let_some_be_right(core, expected)
        requests = generate(core, temperature)
        assert outputs(requests) == expected
        assert core.controller.num_tested > core.controller.num_accepted > 20
        assert (core.controller.num_trees > 10) == bool(shape)
        assert any(r.num_preemptions for r in requests) == (num_blocks == 24)


def noted_drafts(core: EngineCore) -> list[tuple[list[int], Draft]]:
    """The text and the draft of every row that is drafted for, from now on."""
    (drafter,) = core.executor.drafters
    drafts, draft_trees = [], drafter.draft_trees

    def noted(batch, *rest):
        made = draft_trees(batch, *rest)
        pairs = zip(batch.decoding, made, strict=True)
        drafts.extend((r.token_ids.tolist(), draft) for r, draft in pairs if len(draft))
        return made

    drafter.draft_trees = noted
    return drafts


def test_our_kernel_proposes_what_torch_does(monkeypatch):
    """Of features and after its own draft, in a tree and beside others; rounded to blocks nearly
    so."""
    need_kernels(native_head.LIBRARY)
    target = tiny_runner(taps=TAPS)
    options = {"name": "head", "num_slots": 4}
    runners = [
        HeadRunner(random_head(), target, is_rounded=is_rounded, **options)
        for is_rounded in (False, True)
    ]
    monkeypatch.setattr(NativeHead, "applies_to", lambda *args: False)
    runners.append(HeadRunner(random_head(), target, **options))
    random = np.random.default_rng(3)
    features = torch.from_numpy(
        random.standard_normal((4, 128, runners[0].features.shape[2]), dtype=np.float32)
    )

    def tokens(number: int) -> np.ndarray:
        return random.integers(0, VOCABULARY, number, dtype=np.int32)

    text = [Segment(2, 0, tokens(9), 1), Segment(0, 3, tokens(1), 1), Segment(1, 0, tokens(70), 2)]
    level = [
        Segment(1, 70, tokens(2), 2, tree_mask(np.array([-1, -1]), 70)),
        Segment(2, 9, tokens(1), 1),
    ]
    found = []
    for runner in runners:
        runner.features.copy_(features)
        found.append((runner.propose(text, None, 3), runner.propose(level, [3, 3, 0], 3)))
    for ours, rounded, torchs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours.token_ids, torchs.token_ids)
        np.testing.assert_allclose(ours.chances, torchs.chances, rtol=1e-4)
        np.testing.assert_allclose(ours.entropy, torchs.entropy, rtol=1e-4)
        np.testing.assert_allclose(rounded.chances, torchs.chances, atol=0.1)
        assert (rounded.chances != ours.chances).any()


def with_one_request() -> tuple[HeadDrafter, Batch]:
    """In slot 2, all but its newest token are computed."""
    (drafter,) = make_core().executor.drafters
    request = Request(0, [1, 2, 3], SamplingParams(max_tokens=9), seed=0)
    request.slot, request.num_computed_tokens = 2, 2
    drafter._num_known[2] = 2
    return drafter, Batch(decoding=(request,))


@pytest.mark.usefixtures("attention")
def test_features_without_numbers_make_drafts_that_can_be_verified():
    drafter, batch = with_one_request()
    drafter.runner.features[2, :2] = torch.nan
    (draft,) = drafter.draft_trees(batch, np.array([6]), np.array([3]), 3)
    assert (draft.parents < np.arange(len(draft))).all() and len(draft) > 0
    assert ((draft.confidence >= 0.0) & (draft.confidence <= 1.0)).all()
    assert ((draft.token_ids >= 0) & (draft.token_ids < VOCABULARY)).all()


def test_what_a_plan_takes_children_for_makes_the_shape():
    """The best static tree, of the head's own tokens."""

    def draft(chances: np.ndarray | None) -> Draft:
        drafter, batch = with_one_request()
        return drafter.draft_trees(batch, np.array([7]), np.array([4]), 3, None, chances)[0]

    chances = np.tile([0.6, 0.25, 0.1], (4, 1))
    of_plan, of_head = draft(chances), draft(None)
    (grown,), _ = grow_trees(chances[None], np.array([7]), np.array([4]))
    assert np.sort(of_plan.depths).tolist() == np.sort(best_tree(chances, 7).depths).tolist()
    assert of_plan.parents.tolist() == grown.parents.tolist()
    assert of_plan.confidence.tolist() == grown.confidence.tolist()
    assert of_plan.token_ids[0] == of_head.token_ids[0], "the top-1 child is the head's likeliest"
    assert of_plan.confidence.tolist() != of_head.confidence.tolist()


def test_of_a_tree_the_features_of_the_accepted_path_are_kept():
    drafter, batch = with_one_request()
    rows = torch.arange(5.0)[:, None].expand(5, drafter.runner.features.shape[2])
    drafter.target.features = [rows]
    verification = Verification((7, 8, 9), 2, accepted_nodes=(1, 3))
    drafter.observe(batch, np.array([4]), (verification,), ())
    # the newest token, and these nodes after it
    assert drafter.runner.features[2, 2:5, 0].tolist() == [0.0, 2.0, 4.0]
    assert drafter._num_known[2] == 5
