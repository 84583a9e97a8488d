"""A trained head as drafter, on tiny models: whatever it drafts, outputs are those of plain decoding."""

import time

import numpy as np
import pytest
import torch
from tiny_models import VOCABULARY, as_loaded, tiny_llama

from smartspec.control.records import DraftPlan
from smartspec.core.batch import Batch, Verification
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.core.scheduler import Scheduler
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.eagle3 import Eagle3Head, HeadConfig
from smartspec.engine.drafting.head_drafter import HeadDrafter
from smartspec.engine.drafting.head_runner import HeadRunner
from smartspec.engine.models import model_runner
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.executor import LiveExecutor
from smartspec.train.start import head_config
from smartspec.train.unroll import TrainingBatch, unroll

TAPS = (1, 2)
NUM_DRAFT_TOKENS = 40


def random_head(seed: int = 0, **variants: bool) -> Eagle3Head:
    torch.manual_seed(seed)
    layer = head_config(tiny_llama().config, NUM_DRAFT_TOKENS).layer
    head = Eagle3Head(HeadConfig(layer, NUM_DRAFT_TOKENS, TAPS, layer.hidden_size, **variants))
    ids = np.sort(np.random.default_rng(seed).choice(VOCABULARY, NUM_DRAFT_TOKENS, replace=False))
    head.d2t.copy_(torch.from_numpy(ids) - torch.arange(NUM_DRAFT_TOKENS))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return head.requires_grad_(False).eval()


class RandomLengths:
    """Drafts of random lengths that change every step, and pauses in which the head is not asked."""

    predicted_seconds = 0.0

    def __init__(self, seed: int, pause: float):
        self.random, self.pause = np.random.default_rng(seed), pause
        self.num_tested = self.num_accepted = 0

    def plan_draft(self, view) -> DraftPlan:
        is_asked = self.random.random() >= self.pause
        lengths = self.random.integers(0, np.minimum(view.max_draft_tokens, view.draft_lengths[0]) + 1) * is_asked
        return DraftPlan(lengths=lengths, drafter=np.zeros(view.num_rows, dtype=int))

    def plan_verify(self, view, plan, drafted):
        assert (drafted.lengths == plan.lengths).all()
        return drafted.lengths

    def observe(self, feedback) -> None:
        self.num_tested += int(feedback.tested.sum())
        self.num_accepted += int(feedback.accepted.sum())

    def forget(self, request_id: int) -> None: ...


def make_core(pause: float = 0.4, num_blocks: int = 60, seed: int = 0, **variants: bool) -> EngineCore:
    target = ModelRunner(as_loaded(tiny_llama(0)), num_slots=4, max_len=128, taps=TAPS)
    head = HeadRunner(random_head(**variants), target, name="head", num_slots=4)
    scheduler = Scheduler(BlockManager(num_blocks, 4, 4), max_batched_tokens=16, max_model_len=128, max_draft_tokens=5)
    executor = LiveExecutor(target, (HeadDrafter(head, target, 4, "head"),))
    return EngineCore(scheduler, executor, RandomLengths(seed, pause))


def generate(core: EngineCore, temperature: float = 0.0) -> list[Request]:
    random = np.random.default_rng(5)
    shared = random.integers(0, VOCABULARY, 8).tolist()
    requests = []
    for i in range(7):
        prompt = shared + random.integers(0, VOCABULARY, random.integers(1, 30)).tolist()
        requests.append(Request(i, prompt, SamplingParams(max_tokens=25, temperature=temperature), seed=i))
        core.add_request(requests[-1])
    while core.has_work:
        core.step(time.monotonic())
    return requests


@pytest.fixture(params=["the kernels of this machine", "torch"])
def attention(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(model_runner, "max_tokens_per_tile", lambda *model: 0)
        monkeypatch.setattr("smartspec.engine.drafting.head_runner.max_tokens_per_tile", lambda *model: 0)


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_blocks", [60, 24])
def test_outputs_are_those_of_plain_decoding(temperature, num_blocks):
    expected = [r.output_token_ids.tolist() for r in generate(make_core(pause=1.0), temperature)]
    for seed in range(2):
        core = make_core(num_blocks=num_blocks, seed=seed)
        requests = generate(core, temperature)
        assert [r.output_token_ids.tolist() for r in requests] == expected
        assert core.controller.num_tested > 50 > core.controller.num_accepted
        assert any(r.num_preemptions for r in requests) == (num_blocks == 24)


def reference_draft(head: Eagle3Head, token_ids: list[int], length: int) -> list[int]:
    """What the head drafts behind a text by the code that trains it, from one pass of the target over the text."""
    target = ModelRunner(as_loaded(tiny_llama(0)), num_slots=1, max_len=128, taps=TAPS)
    target.forward([Segment(0, 0, np.array(token_ids[:-1], dtype=np.int32), 1)])
    embedding = target.loaded.model.get_input_embeddings().weight
    nothing, drafted = torch.zeros(1), []
    for step in range(length):
        tokens = torch.tensor([token_ids + drafted])
        batch = TrainingBatch(tokens, target.features[0][None], nothing, nothing, nothing, nothing, nothing)
        *_, normed = unroll(head, embedding, batch, step + 1)
        drafted.append(int(head.target_ids[head.lm_head(normed[0, -1]).argmax()]))
    return drafted


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("variant", [None, "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"])
def test_drafts_are_those_of_the_code_that_trains_it(variant):
    """Behind catch-ups, rejections, preemptions and prefixes taken over from other slots."""
    variants = {} if variant is None else {variant: True}
    core, head = make_core(num_blocks=24, **variants), random_head(**variants)
    (drafter,) = core.executor.drafters
    drafts = []
    draft = drafter.draft

    def noted(batch, lengths, stop=None):
        made = draft(batch, lengths, stop)
        pairs = zip(batch.decoding, made, strict=True)
        drafts.extend((r.token_ids.tolist(), each.token_ids.tolist()) for r, each in pairs if len(each))
        return made

    drafter.draft = noted
    requests = generate(core)
    assert any(r.num_cached_tokens for r in requests) and any(r.num_preemptions for r in requests)
    for token_ids, drafted in drafts[::7]:
        assert drafted == reference_draft(head, token_ids, len(drafted))
    assert len(drafts) > 70


def test_of_a_tree_the_features_of_the_accepted_path_are_kept():
    core = make_core()
    (drafter,) = core.executor.drafters
    request = Request(0, [1, 2, 3], SamplingParams(max_tokens=9), seed=0)
    request.slot, request.num_computed_tokens = 2, 2
    drafter._num_known[2] = 2
    rows = torch.arange(5.0)[:, None].expand(5, drafter.runner.features.shape[2])
    core.executor.runner.features = [rows]
    verification = Verification((7, 8, 9), 2, accepted_nodes=(1, 3))
    drafter.observe(Batch(decoding=(request,)), np.array([4]), (verification,), ())
    assert drafter.runner.features[2, 2:5, 0].tolist() == [0.0, 2.0, 4.0]  # the newest token, and these nodes behind it
    assert drafter._num_known[2] == 5
