"""A head with an acceptance head beside it: other chances, the same tokens and outputs, and stops
that go by them."""

import numpy as np
import pytest
import torch
from test_head_drafter import attention, make_core, noted_drafts
from tiny_engine import generate

from lab.heads.acceptance_head import AcceptanceHead, JudgedRunner
from lab.policies.specdecpp import stop_when_rejection_likely

__all__ = ["attention"]  # a fixture


def judging(core, bias: float = 0.0):
    """The core whose head has one that was not trained."""
    runner = core.executor.drafters[0].runner
    torch.manual_seed(1)
    acceptance = AcceptanceHead(runner.loaded.model.config.hidden_size).requires_grad_(False)
    torch.nn.init.normal_(acceptance.output.weight, std=0.5)
    acceptance.output.bias += bias
    runner.__class__, runner.judge = JudgedRunner, acceptance
    return core


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_are_those_of_plain_decoding(temperature):
    expected = [r.output_token_ids.tolist() for r in generate(make_core(pause=1.0), temperature)]
    core = judging(make_core(max_width=4, max_draft_tokens=12, sure=True))
    assert [r.output_token_ids.tolist() for r in generate(core, temperature)] == expected
    assert core.controller.num_tested > 50 > core.controller.num_accepted


@pytest.mark.usefixtures("attention")
def test_chains_hold_the_same_tokens_with_what_it_says_of_each():
    found = []
    for core in (make_core(), judging(make_core())):
        drafts = noted_drafts(core)
        generate(core)
        found.append([draft for _, draft in drafts])
    for without, judged in zip(*found, strict=True):
        assert without.token_ids.tolist() == judged.token_ids.tolist()
    own, said = (np.concatenate([draft.confidence for draft in drafts]) for drafts in found)
    assert ((said > 0.0) & (said < 1.0)).all() and np.abs(said - own).max() > 0.2


@pytest.mark.usefixtures("attention")
def test_every_row_is_judged_by_what_its_own_output_embedding_reads():
    core = judging(make_core())
    runner, rows = core.executor.drafters[0].runner, []
    judged = runner.judge.judged

    def noted(proposals, hidden):
        logits = head_logits(hidden)
        rows.append(
            torch.softmax(logits, dim=-1).max(dim=-1).values.numpy() - proposals.chances[:, 0]
        )
        return judged(proposals, hidden)

    head_logits = output_of(runner)
    runner.judge.judged = noted
    generate(core)
    assert len(rows) > 20 and np.abs(np.concatenate(rows)).max() < 1e-3


def output_of(runner):
    """The head's output embedding, of hidden states after its norm."""
    if runner._native is None:
        return lambda hidden: runner._packed.lm_head(hidden[None])[0]
    lm_head = runner._native._parts.lm_head
    return lambda hidden: lm_head(hidden[None])[0]


@pytest.mark.parametrize(("bias", "stops"), [(-9.0, True), (9.0, False)])
def test_the_stop_of_specdec_goes_by_it(bias, stops):
    core = judging(make_core(), bias)
    drafter, lengths = core.executor.drafters[0], []
    draft, core.controller.cut = drafter.draft, lambda plan, drafted: drafted.lengths

    def stopped(batch, planned, stop=None):
        made = draft(batch, planned, stop_when_rejection_likely(0.3, len(planned)))
        lengths.extend((int(n), len(each)) for n, each in zip(planned, made, strict=True))
        return made

    drafter.draft = stopped
    generate(core)
    assert max(planned for planned, _ in lengths) == 5
    assert all(made == (min(planned, 2) if stops else planned) for planned, made in lengths)
