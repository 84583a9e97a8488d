"""The controller's cut of sampled drafts does not change what is sampled.

Half of the drafts go on with tokens that the draft model doubts: those after the first are not
worth a token's price, and whether they are tells which token the first one was.
"""

import operator

import markov_engine
import numpy as np
from markov_engine import TableExecutor, TableRunner, serve
from test_policy_distribution import new_policy

from smartspec.control.latency.cost_curve import CostCurve
from smartspec.core.request import Request
from smartspec.core.sampling_params import SamplingParams
from smartspec.engine.drafting.model.drafter import DraftModel

VOCABULARY, K, BATCH, NUM_TOKENS = 8, 3, 8, 400
FORK, SURE, DOUBTFUL = 0, 1, 2
TARGET_SECONDS = CostCurve(knots=(1.0,), slopes=(2e-3 / BATCH,), constant=18e-3)
DRAFT_SECONDS = CostCurve(knots=(1.0,), slopes=(1e-5,), constant=1e-4)
MAX_DEVIATION = 4.5  # standard deviations: chance exceeds it once in 150,000 runs with other seeds


def bigram_models():
    """FORK is followed by SURE or DOUBTFUL, evenly in both models. After SURE the draft model knows
    the target's way back to FORK, after DOUBTFUL it has no idea."""
    target, draft = np.full((2, VOCABULARY, VOCABULARY), 1e-6)
    for model in (target, draft):
        model[FORK, [SURE, DOUBTFUL]] = 0.5
        model[[SURE, 3, 4], [3, 4, FORK]] = 1.0
    target[[DOUBTFUL, 5, 6, 7], [5, 6, FORK, FORK]] = 1.0
    draft[[DOUBTFUL, 5, 6, 7]] = 1 / VOCABULARY
    return target, draft


class CountedCuts(TableExecutor):
    num_drafts = num_cut = 0

    def draft(self, batch, plan):
        self.drafted = super().draft(batch, plan)
        return self.drafted

    def verify(self, batch, drafts):
        self.num_drafts += len(drafts)
        self.num_cut += sum(map(operator.ne, map(len, self.drafted), map(len, drafts)))
        return super().verify(batch, drafts)


def test_what_is_cut_does_not_depend_on_what_was_drawn(monkeypatch):
    monkeypatch.setattr(markov_engine, "TARGET_SECONDS", TARGET_SECONDS)
    monkeypatch.setattr(markov_engine, "DRAFT_SECONDS", DRAFT_SECONDS)
    target, draft = bigram_models()
    executor = CountedCuts(target, (DraftModel(TableRunner(draft), BATCH),))
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, ignore_eos=True)
    requests = [Request(number, [FORK], params, seed=number) for number in range(BATCH)]
    serve(new_policy("goodput"), requests, executor, batch=BATCH, max_draft_tokens=K)
    texts = [request.token_ids for request in requests]
    after_fork = np.concatenate([text[1:][text[:-1] == FORK] for text in texts])
    num_sure = int((after_fork == SURE).sum())
    deviation = (2 * num_sure - len(after_fork)) / np.sqrt(len(after_fork))
    assert executor.num_cut > executor.num_drafts / 4
    assert abs(deviation) < MAX_DEVIATION, f"{num_sure} of {len(after_fork)}"
