"""The real engine, controller and drafters over models that are tables: the next token's
distribution by the last one.

Time is a fake clock's: a step takes longer for every token that is verified, and for what was
drawn, so that policies that learn from time can learn from that, too.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from markov_model import p_of_fit

from smartspec.control.controller import Controller
from smartspec.control.latency.cost_curve import CostCurve
from smartspec.control.latency.model import LatencyModel
from smartspec.control.policy import Policy
from smartspec.control.records import UNLIMITED, DrafterSpec, DrafterView, FreeTests, StepSeconds
from smartspec.core.batch import Draft
from smartspec.core.blocks import BlockManager
from smartspec.core.drafter import Drafter
from smartspec.core.engine_core import EngineCore
from smartspec.core.policy_names import parse_policy
from smartspec.core.request import Request
from smartspec.core.scheduler import Scheduler
from smartspec.engine.drafting.trees.expansion import TreeExpansion, best_children
from smartspec.engine.runtime.executor import LiveExecutor

TARGET_SECONDS = CostCurve.linear(10e-3, 0.1e-3)
DRAFT_SECONDS = CostCurve.linear(0.3e-3, 0.01e-3)


class TableRunner:
    """In place of a ModelRunner. table: [V, V], probabilities of the next token by the last one."""

    max_len = 100_000
    features: Sequence = ()

    def __init__(self, table: np.ndarray):
        self.table = table / table.sum(axis=1, keepdims=True)
        self.log_probs = torch.log(torch.from_numpy(self.table)).float()

    def apply(self, memory_ops) -> None: ...

    def keep_path(self, slot, num_tokens, nodes) -> None: ...

    def forward(self, segments) -> torch.Tensor:
        last = [
            segment.token_ids[len(segment.token_ids) - segment.num_logits :] for segment in segments
        ]
        return self.log_probs[torch.from_numpy(np.concatenate(last).astype(np.int64))]


class TableHead:
    """A drafter of trees of the likeliest tokens, as heads are, over a table. Implements
    core.drafter.TreeDrafter."""

    def __init__(self, table: np.ndarray):
        self.spec = DrafterSpec("table head", has_passes=True, makes_trees=True)
        self.logits = TableRunner(table).log_probs

    def begin_step(self, batch) -> None: ...

    def view(self, batch, is_queried=True) -> DrafterView:
        return DrafterView(np.full(len(batch.decoding), UNLIMITED))

    def draft(self, batch, lengths, stop=None) -> list[Draft]:
        return self.draft_trees(batch, lengths, lengths, 1, stop)

    def draft_trees(self, batch, lengths, depths, width, stop=None, chances=None) -> list[Draft]:
        trees = [TreeExpansion(width, length) for length in lengths.tolist()]
        for row, (tree, request) in enumerate(zip(trees, batch.decoding, strict=True)):
            nodes, token_ids = [-1], request.token_ids[-1:]
            for depth in range(int(min(depths[row], lengths[row]))):
                token_lists, chance_lists = best_children(self.logits[token_ids], width)
                confidence = tree.add(nodes, token_lists, chance_lists)
                entropy = float(torch.special.entr(self.logits[token_ids[0]].exp()).sum())
                nodes = tree.frontier()
                of_pass = depth, np.array([row]), np.array([confidence]), np.array([entropy])
                if not nodes or (stop is not None and stop(*of_pass)[0]):
                    break
                tree.feed(nodes, request.num_tokens + depth)
                token_ids = tree.token_ids(nodes)
        return [tree.draft() for tree in trees]

    def observe(self, batch, verified, decoding, prefill) -> FreeTests:
        return FreeTests(*np.zeros((3, len(verified)), dtype=np.int64))


class TableExecutor(LiveExecutor):
    """seconds_of: float [V], how much longer a step takes for each token that was drafted. Also
    says the divergence of drafts from the target."""

    def __init__(
        self, target: np.ndarray, drafters: Sequence[Drafter], seconds_of: np.ndarray | None = None
    ):
        super().__init__(TableRunner(target), tuple(drafters))
        self._seconds_of = np.zeros(len(target)) if seconds_of is None else seconds_of

    def draft(self, batch, plan):
        drafts = super().draft(batch, plan)
        self._drafting = sum(float(self._seconds_of[draft.token_ids].sum()) for draft in drafts)
        has_passes = np.array([*(drafter.spec.has_passes for drafter in self.drafters), False])[
            plan.drafter
        ]
        self._drafting += float(DRAFT_SECONDS.seconds(1.0)) * int(
            plan.passes[has_passes].max(initial=0)
        )
        return drafts

    def verify(self, batch, drafts):
        self._num_fed = sum(map(len, drafts)) + len(batch.decoding) + sum(batch.num_prefill_tokens)
        return replace(
            super().verify(batch, drafts), extras={"divergence": self._divergence(batch, drafts)}
        )

    def _step_seconds(self, target):
        return StepSeconds(self._drafting, float(TARGET_SECONDS.seconds(self._num_fed)), 1e-4)

    def _divergence(self, batch, drafts) -> np.ndarray:
        """Of chains; of trees as if their nodes followed one another."""
        divergence = np.full((len(drafts), max(map(len, drafts), default=0)), np.nan)
        for of_row, request, draft in zip(divergence, batch.decoding, drafts, strict=True):
            before = [request.token_ids[-1], *draft.token_ids[:-1]]
            for node, (last, token) in enumerate(zip(before, draft.token_ids, strict=False)):
                target = np.maximum(self.runner.table[last], 1e-9)
                q = np.eye(len(target))[token] if draft.probs is None else draft.probs[node].numpy()
                of_row[node] = (q[q > 0] * np.log(q[q > 0] / target[q > 0])).sum()
        return divergence


def serve(
    policy: str | Policy,
    requests: list[Request],
    executor: TableExecutor,
    *,
    batch: int,
    max_draft_tokens: int,
) -> int:
    """Serve all requests, so many at a time; returns how many draft tokens were accepted."""
    total = max(request.max_num_tokens for request in requests) + max_draft_tokens
    blocks = BlockManager(batch * (2 + total // 16), 16, batch)
    limits = {
        "max_batched_tokens": 4096,
        "max_model_len": total,
        "max_draft_tokens": max_draft_tokens,
    }
    specs = tuple(drafter.spec for drafter in executor.drafters)
    latency = LatencyModel(
        TARGET_SECONDS, tuple(DRAFT_SECONDS if spec.has_passes else None for spec in specs)
    )
    if isinstance(policy, str):
        policy = parse_policy(policy)
    controller = Controller(policy, max_draft_tokens, latency, drafters=specs, strict=True)
    core, now, accepted = EngineCore(Scheduler(blocks, **limits), executor, controller), 0.0, 0
    waiting = list(reversed(requests))
    while waiting or core.has_work:
        while waiting and core.num_waiting + core.num_running < batch:
            core.add_request(waiting.pop())
        output = core.step(now)
        now += output.seconds.total
        accepted += output.num_accepted_tokens
    return accepted


def p_of_transitions(texts: list[list[int]], table: np.ndarray) -> float:
    """Of all pairs of neighbours in texts, were they drawn from the table: by chi-square, a test
    for each last token of more than one successor; the least of their p-values times their number
    (Bonferroni), at most 1."""
    counts = np.zeros(table.shape)
    for text in texts:
        np.add.at(counts, (text[:-1], text[1:]), 1)
    rows = [
        row for row in range(len(table)) if (table[row] > 0).sum() > 1 and counts[row].sum() > 0
    ]
    assert not counts[table == 0].any()
    return min(1.0, len(rows) * min(p_of_fit(counts[row], table[row]) for row in rows))
