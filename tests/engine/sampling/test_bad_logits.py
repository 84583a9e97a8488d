"""A request whose logits are NaN, on a tiny model, ends with an error; neighbours and successors
notice nothing."""

import numpy as np
import pytest
import torch
from markov_engine import TableExecutor, TableRunner, serve
from markov_model import p_of_fit
from tiny_engine import GREEDY_AND_SAMPLED, RandomPlans, core_of, outputs, run
from tiny_models import KERNEL_AND_TORCH, VOCABULARY, tiny_llama, tiny_runner

from smartspec.control.records import DrafterView, FreeTests, Plan, StopRule
from smartspec.core.batch import NO_DRAFT, Batch, Draft, chain
from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.drafters.prompt_lookup import PromptLookupDrafter
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.model.drafter import DraftModel
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.executor import LiveExecutor

BAD_TOKEN = VOCABULARY - 1
LONG, SHORT = [i * 7 % 50 for i in range(60)], [3, 1, 4, 1, 5]
BAD = [BAD_TOKEN, *range(50)]  # whatever comes after the bad token attends to it


class WholeDrafts(RandomPlans):
    """Every row drafts with the only drafter, in full length."""

    def plan(self, view) -> Plan:
        view = view.queried(True)
        return Plan(lengths=view.draft_lengths[0], drafter=np.zeros(view.num_rows, dtype=int))

    def cut(self, plan, drafted):
        return drafted.lengths


def make_core(tile_tokens: int, taps: tuple[int, ...] = ()) -> EngineCore:
    """tile_tokens: 0 for torch's attention, which reads masked positions too."""
    model = tiny_llama(0)
    model.model.embed_tokens.weight[BAD_TOKEN] = torch.nan
    # A head's positions are no whole number of pages: giving pages back would not clear them.
    runner = tiny_runner(model, tile_tokens, num_slots=2, max_len=100, taps=taps)
    executor = LiveExecutor(runner, (PromptLookupDrafter(max_draft_tokens=4),))
    return core_of(executor, WholeDrafts(), 50, 4, max_batched_tokens=64)


def make_request(
    request_id: int, prompt: list[int], max_tokens: int, temperature: float
) -> Request:
    return Request(
        request_id,
        prompt,
        SamplingParams(max_tokens=max_tokens, temperature=temperature),
        seed=request_id,
    )


def decode(core: EngineCore, *requests: Request) -> list[list[int]]:
    return outputs(run(core, [*requests]))


@GREEDY_AND_SAMPLED
@KERNEL_AND_TORCH
def test_neighbour_and_successor_get_the_tokens_they_would_get_alone(tile_tokens, temperature):
    def of(request_id, prompt, max_tokens):
        return make_request(request_id, prompt, max_tokens, temperature)

    long_alone, short_alone = (
        decode(make_core(tile_tokens), of(i, prompt, max_tokens))[0]
        for i, prompt, max_tokens in [(0, LONG, 30), (2, SHORT, 8)]
    )
    core = make_core(tile_tokens)
    neighbour, bad, successor = of(0, LONG, 30), of(1, BAD, 10), of(2, SHORT, 8)
    assert decode(core, neighbour, bad, successor) == [long_alone, [], short_alone]
    assert (bad.finish_reason, neighbour.finish_reason, successor.finish_reason) == (
        "error",
        "length",
        "length",
    )
    assert "output token 0 are NaN or infinite" in bad.error and "--dtype float32" in bad.error
    again = of(3, BAD, 10)
    assert decode(core, again) == [[]] and again.num_cached_tokens == 0
    assert core.scheduler.blocks.num_used_blocks == 0


class BadDrafts(PromptLookupDrafter):
    """The token that plain decoding will emit, then one the model has no numbers for. outputs: what
    that is."""

    outputs: list[int]

    def view(self, batch: Batch, is_queried: bool = True) -> DrafterView:
        return DrafterView(np.full(len(batch.decoding), 3))

    def draft(self, batch: Batch, lengths: np.ndarray, stop: StopRule | None) -> tuple[Draft, ...]:
        right = [self.outputs[request.num_output_tokens] for request in batch.decoding]
        tokens = [np.array([token, BAD_TOKEN, 3], dtype=np.int32) for token in right]
        return tuple(
            chain(three[:length]) for three, length in zip(tokens, lengths.tolist(), strict=True)
        )


@GREEDY_AND_SAMPLED
@KERNEL_AND_TORCH
def test_a_draft_token_without_numbers_ends_no_request(tile_tokens, temperature):
    alone = decode(make_core(tile_tokens), make_request(0, SHORT, 12, temperature))[0]
    core = make_core(tile_tokens)
    drafter = BadDrafts(max_draft_tokens=4)
    drafter.outputs = alone
    core.executor.drafters = (drafter,)
    request, neighbour = (make_request(0, SHORT, 12, temperature) for _ in range(2))
    neighbour.request_id = 1
    assert decode(core, request, neighbour) == [alone, alone]
    assert (request.error, neighbour.error) == (None, None)


class FeatureReader(BadDrafts):
    """Bad drafts for request 1 alone. Notes at each position what the target's layers computed of
    the newest token, as drafters that read features do."""

    def __init__(self, target: ModelRunner, **limits: int):
        super().__init__(**limits)
        self.target = target
        self.read: dict[tuple[int, int], torch.Tensor] = {}  # by request and position

    def draft(self, batch: Batch, lengths: np.ndarray, stop: StopRule | None) -> tuple[Draft, ...]:
        drafts = zip(batch.decoding, super().draft(batch, lengths, stop), strict=True)
        return tuple(draft if request.request_id == 1 else NO_DRAFT for request, draft in drafts)

    def observe(self, batch: Batch, *rest) -> FreeTests:
        assert len(self.target.features) == len(batch.decoding) + len(batch.prefill)
        for request, features in zip(batch.decoding, self.target.features, strict=False):
            self.read[request.request_id, request.num_computed_tokens] = features[0]
        return super().observe(batch, *rest)


@KERNEL_AND_TORCH
def test_a_pass_without_bad_drafts_leaves_every_request_its_features(tile_tokens):
    alone = decode(make_core(tile_tokens), make_request(0, SHORT, 12, 0.0))[0]
    core = make_core(tile_tokens, taps=(1, 2))
    drafter = FeatureReader(core.executor.runner, max_draft_tokens=4)
    drafter.outputs = alone
    core.executor.drafters = (drafter,)
    requests = [
        make_request(number, prompt, 12, 0.0) for number, prompt in enumerate([LONG, SHORT])
    ]
    assert decode(core, *requests)[1] == alone
    assert {request_id for request_id, _ in drafter.read} == {0, 1}
    for request in requests:
        target = make_core(tile_tokens, taps=(1, 2)).executor.runner
        target.forward([Segment(0, 0, request.token_ids, 1)])
        for (request_id, position), features in drafter.read.items():
            if request_id == request.request_id:
                torch.testing.assert_close(
                    features, target.features[0][position], rtol=1e-4, atol=1e-4
                )


class NaNBehind(TableRunner):
    """Has no numbers after BAD; with_neighbours: nor, in the same pass, for any other token of that
    request, as where attention reads what its mask hides."""

    BAD, with_neighbours = 3, False

    def forward(self, segments: list[Segment]) -> torch.Tensor:
        logits, first = super().forward(segments), 0
        for segment in segments:
            is_bad = segment.token_ids[len(segment.token_ids) - segment.num_logits :] == self.BAD
            is_bad |= self.with_neighbours and bool((segment.token_ids == self.BAD).any())
            logits[first : first + segment.num_logits][torch.from_numpy(is_bad)] = torch.nan
            first += segment.num_logits
        return logits


@pytest.mark.parametrize("with_neighbours", [False, True])
def test_tokens_that_were_drawn_are_not_dropped_for_a_bad_one_among_them(with_neighbours):
    """The bad token, a third of all, comes to stand where it does in plain decoding, which then
    ends with an error."""
    random, num = np.random.default_rng(0), 2400
    target, draft = random.dirichlet(np.ones(NaNBehind.BAD), (2, NaNBehind.BAD + 1))
    target, draft = (
        np.concatenate([table, np.full((len(table), 1), 0.5)], axis=1) for table in (target, draft)
    )
    executor = TableExecutor(target, (DraftModel(TableRunner(draft), 128),))
    executor.runner = NaNBehind(target)
    executor.runner.with_neighbours = with_neighbours
    params = SamplingParams(max_tokens=3)
    requests = [Request(i, [0], params, seed=int(random.integers(2**62))) for i in range(num)]
    serve("fixed:3", requests, executor, batch=128, max_draft_tokens=3)
    texts = outputs(requests)
    assert all(
        (NaNBehind.BAD in text[:2]) == (r.finish_reason == "error")
        for r, text in zip(requests, texts, strict=True)
    )
    places = [text.index(NaNBehind.BAD) if NaNBehind.BAD in text else 3 for text in texts]
    assert (
        p_of_fit(np.bincount(places, minlength=4), np.array([1 / 3, 2 / 9, 4 / 27, 8 / 27])) > 1e-4
    )
