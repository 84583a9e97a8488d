"""Drafts of an EAGLE-3 head are those of the code that trains it, on tiny models."""

import numpy as np
import pytest
import torch
from test_head_drafter import TAPS, attention, make_core, noted_drafts, random_head
from tiny_engine import generate
from tiny_models import as_loaded, tiny_llama

from lab.train.unroll import TrainingBatch, unroll
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.drafting.head.eagle3 import Eagle3Head
from smartspec.engine.models.model_runner import ModelRunner

__all__ = ["attention"]  # a fixture


def reference_logits(head: Eagle3Head, token_ids: list[int], drafted: list[int]) -> torch.Tensor:
    """After a text and what was drafted after it, by the code that trains the head, from one pass
    of the target over the text: [draft_vocab_size]."""
    target = ModelRunner(as_loaded(tiny_llama(0)), num_slots=1, max_len=128, taps=TAPS)
    target.forward([Segment(0, 0, np.array(token_ids[:-1], dtype=np.int32), 1)])
    embedding, nothing = target.loaded.model.get_input_embeddings().weight, torch.zeros(1)
    tokens = torch.tensor([token_ids + drafted])
    batch = TrainingBatch(
        tokens, target.features[0][None], nothing, nothing, nothing, nothing, nothing
    )
    *_, normed = unroll(head, embedding, batch, len(drafted) + 1)
    return head.lm_head(normed[0, -1])


def reference_draft(head: Eagle3Head, token_ids: list[int], length: int) -> list[int]:
    """The chain that the head drafts after a text."""
    drafted: list[int] = []
    while len(drafted) < length:
        drafted.append(int(head.target_ids[reference_logits(head, token_ids, drafted).argmax()]))
    return drafted


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize(
    "variant", [None, "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"]
)
def test_drafts_are_those_of_the_code_that_trains_it(variant):
    """After catch-ups, rejections, preemptions and prefixes taken over from other slots."""
    variants = {} if variant is None else {variant: True}
    core, head = make_core(num_blocks=24, **variants), random_head(**variants)
    drafts = noted_drafts(core)
    requests = generate(core)
    assert any(r.num_cached_tokens for r in requests) and any(r.num_preemptions for r in requests)
    for token_ids, drafted in drafts[::7]:
        assert drafted.token_ids.tolist() == reference_draft(head, token_ids, len(drafted))
    assert len(drafts) > 70


@pytest.mark.usefixtures("attention")
def test_nodes_of_a_tree_know_their_ancestors_and_nothing_else():
    """Each is as likely as the code that trains the head says after the path to it."""
    core, head = (
        make_core(0.0, num_blocks=24, max_width=4, max_draft_tokens=12, sure=True),
        random_head(sure=True),
    )
    drafts = noted_drafts(core)
    generate(core)
    trees = [
        (text, draft) for text, draft in drafts if max(draft.depths) > 2 and not draft.is_chain
    ]
    assert len(trees) > 9
    in_vocabulary = {token_id: number for number, token_id in enumerate(head.target_ids.tolist())}
    for text, draft in trees[::2]:
        for node, path in enumerate(draft.paths[1:]):
            chances = reference_logits(head, text, list(path[:-1])).softmax(-1)
            assert draft.confidence[node] == pytest.approx(
                float(chances[in_vocabulary[path[-1]]]), rel=1e-3
            )
