"""Any policy on a recorded log: what it would have chosen in every recorded step, and the outcome
of that.

A policy is run by a controller of its own, which starts from the log's profile and learns from the
replayed outcomes. The log tells the outcome of its drafts where it can (draft_outcomes). A draft by
the same drafter begins with the same tokens, and its tree with the same nodes. So recorded tests
hold for the new draft. That is exact where drafts are deterministic, and for sampled chains where
randomness is keyed by position, as in our engine. Beyond that, acceptance is drawn from what the
whole log says in hindsight, with the same random numbers for every policy; see hindsight for the
time of a step. Plans for trees of other widths or depths than the recorded ones get the recorded
nodes all the same.

What a replay can tell: how policies compare, step by step, in the recorded situations, and how much
of the answer was observed. What it cannot tell: the situations to which another policy would have
led. Batches, contexts and arrivals follow the recorded run, whatever a policy emits. Where easy
requests left early, the log has many small batches, in which drafts pay. Plain decoding would have
kept those requests, and the batch large. So compare speeds within one table. They are the speed of
a whole run only where the load was steady.

Tokens that were never drafted have no outcome in the log, so a log of a server with drafts off says
little about drafts. A policy that differs much from the recorded one is judged by the hindsight
model. The share of steps that need no random draw is reported. Policies that stop drafting by the
entropy of the draft model never stop here, as logs do not hold it; confidence is known only where
the draft model drafted.
"""

from dataclasses import dataclass, replace

import numpy as np

from smartspec.control import (
    BatchView,
    Controller,
    DecisionRecord,
    Drafted,
    FreeTests,
    LatencyModel,
    LogHeader,
    Outcome,
    Plan,
)
from smartspec.control.log.recorded_log import RecordedLog
from smartspec.control.planning import length_caps
from smartspec.core.draft_columns import drafted_of
from smartspec.core.policy_names import parse_policy
from smartspec.sim.replay.draft_outcomes import DraftOutcomes, draft_outcomes_of
from smartspec.sim.replay.drafts import as_recorded, drafted_chains, tree_drafts
from smartspec.sim.replay.hindsight import HindsightAcceptance, HindsightSeconds
from smartspec.sim.replay.step_outcome import ReplayedOutcome, of_chains, of_trees
from smartspec.sim.world.recorded_ranks import successes_of


@dataclass
class ReplayTotals:
    """Sums over the steps of a log. num_rows: decoding requests; num_from_log: steps without a
    random draw."""

    policy: str
    num_steps: int = 0
    num_rows: int = 0
    num_emitted: int = 0
    num_verified: int = 0
    num_from_log: int = 0
    seconds: float = 0.0

    def add(self, outcome: Outcome, from_log: bool = True) -> None:
        """Count a step."""
        self.num_steps += 1
        self.num_rows += outcome.view.num_rows
        self.num_emitted += outcome.num_emitted
        self.num_verified += int(outcome.verified.sum())
        self.num_from_log += from_log
        self.seconds += outcome.seconds.total

    @property
    def tokens_per_second(self) -> float:
        return self.num_emitted / self.seconds

    @property
    def mean_length(self) -> float:
        """Draft tokens verified per decoding request and step."""
        return self.num_verified / max(self.num_rows, 1)

    @property
    def log_share(self) -> float:
        return self.num_from_log / max(self.num_steps, 1)


def replay(
    log: RecordedLog, policies: list[str], seed: int = 0
) -> tuple[ReplayTotals, list[ReplayTotals]]:
    """Totals of the recorded run, and of each policy (see core.policy_names).

    Reads the log twice. ValueError on an unknown policy, a corrupt log, or one without a token.
    """
    header = log.header
    recorded = ReplayTotals(header.policy)
    acceptance = HindsightAcceptance(header.max_draft_tokens, header.drafters)
    seconds = HindsightSeconds(LatencyModel.from_dict(header.profile))
    replays = [PolicyReplay(header, policy, acceptance, seconds) for policy in policies]
    last_step: dict[int, int] = {}
    for step, record in enumerate(log):
        recorded.add(record.outcome)
        acceptance.add(record)
        seconds.add(record)
        last_step |= dict.fromkeys(record.view.request_ids.tolist(), step)
    if not recorded.num_steps:
        raise ValueError(f"{log.path} holds no step: let the server work before it is stopped")
    if not recorded.num_emitted:
        raise ValueError(
            f"{log.path} holds no step that emitted a token: let the server work before it is "
            "stopped"
        )
    acceptance.fit()
    random = np.random.default_rng(seed)
    for step, record in enumerate(log):
        uniform = random.random((record.view.num_rows, header.max_draft_tokens))
        ended = [i for i in record.view.request_ids.tolist() if last_step[i] == step]
        for policy_replay in replays:
            policy_replay.step(record, uniform, ended)
    return recorded, [policy_replay.totals for policy_replay in replays]


class PolicyReplay:
    """One policy on its way through a log."""

    def __init__(
        self,
        header: LogHeader,
        policy: str,
        acceptance: HindsightAcceptance,
        seconds: HindsightSeconds,
    ):
        self.totals = ReplayTotals(policy)
        self._max_draft_tokens = header.max_draft_tokens
        self._drafters = header.drafters
        self._controller = Controller(
            parse_policy(policy, header.max_draft_tokens),
            header.max_draft_tokens,
            LatencyModel.from_dict(header.profile),
            drafters=header.drafters,
        )
        self._acceptance = acceptance
        self._seconds = seconds
        # tokens in the KV of drafters, by drafter and request
        self._num_seen: dict[tuple[int, int], int] = {}

    def step(self, record: DecisionRecord, uniform: np.ndarray, ended: list[int]) -> None:
        """Get a plan, and tell the controller its outcome. uniform: float [R, K] in [0, 1); ended:
        requests last seen here."""
        view = self._view(record)
        chosen = self._controller.plan(view)
        plan = self._possible(view, chosen)
        trees = tree_drafts(record, plan, self._drafters, self._acceptance)
        if trees is None:
            drafted = drafted_chains(record, plan, len(self._drafters))
        else:
            drafted = drafted_of(trees, self._max_draft_tokens)
        plan = replace(plan, lengths=drafted.lengths)
        verified = np.minimum(self._controller.cut(plan, drafted), drafted.lengths)
        draft_outcomes = self._draft_outcomes(record, uniform)
        if trees is None:
            replayed = of_chains(plan, verified, draft_outcomes)
        else:
            replayed = of_trees(plan, trees, verified, draft_outcomes, self._max_draft_tokens)
        outcome = self._outcome(record, view, plan, drafted, verified, replayed, draft_outcomes)
        self._controller.learn(chosen, outcome)
        self.totals.add(outcome, from_log=replayed.is_known)
        self._remember_seen(view, plan)
        for request_id in ended:
            self._controller.end(request_id)
            for number in range(len(self._drafters)):
                self._num_seen.pop((number, request_id), None)

    def _possible(self, view: BatchView, plan: Plan) -> Plan:
        """The plan, cut to what the drafters and the KV memory could give, as the engine does."""
        lengths = np.minimum(plan.lengths, length_caps(view, plan.drafter, self._max_draft_tokens))
        room = view.draft_token_budget - (np.cumsum(lengths) - lengths)
        return replace(plan, lengths=np.clip(lengths, 0, np.maximum(room, 0)))

    def _draft_outcomes(self, record: DecisionRecord, uniform: np.ndarray) -> list[DraftOutcomes]:
        """Outcomes of drafts, by drafter."""
        conditional = self._acceptance.conditional(record.view)
        return [
            draft_outcomes_of(
                record, n, spec, conditional[n], self._acceptance.rank_chances(n), uniform
            )
            for n, spec in enumerate(self._drafters)
        ]

    def _outcome(
        self,
        record: DecisionRecord,
        view: BatchView,
        plan: Plan,
        drafted: Drafted,
        verified: np.ndarray,
        replayed: ReplayedOutcome,
        draft_outcomes: list[DraftOutcomes],
    ) -> Outcome:
        """The outcome of the replayed step, for the controller."""
        then = record.outcome
        free_tests = []
        for number, (spec, of_drafts) in enumerate(
            zip(self._drafters, draft_outcomes, strict=True)
        ):
            position = np.where(plan.drafter == number, verified, 0)
            is_there = (position < view.draft_lengths[number]) & (not spec.has_passes)
            tested, matched = of_drafts.free_test(position, view.drafters[number])
            tested &= is_there & (position < replayed.num_kept)
            free_tests.append(
                FreeTests(position, tested.astype(np.int64), (tested & matched).astype(np.int64))
            )
        outcome = Outcome.of(
            view,
            plan,
            drafted,
            verified,
            replayed.accepted,
            then.seconds,
            tested=replayed.tested,
            num_emitted=then.num_emitted + int((replayed.num_kept - _recorded_kept(then)).sum()),
            extras={
                name: as_recorded(record, value, plan.drafter, verified)
                for name, value in then.extras.items()
            },
            free_tests=tuple(free_tests),
            node_tests=replayed.node_tests if drafted.parents is not None else None,
        )
        return replace(
            outcome, seconds=self._seconds.seconds(record, view, outcome.as_drafted(), verified)
        )

    def _view(self, record: DecisionRecord) -> BatchView:
        """The recorded view, with the KV of drafters lagging as it would had this policy decided so
        far.

        A request begins as it was recorded.
        """
        view, drafters = record.view, []
        for number, (spec, drafter) in enumerate(
            zip(self._drafters, record.view.drafters, strict=True)
        ):
            lag = drafter.lag.copy()
            pairs = zip(view.request_ids.tolist(), view.context_tokens.tolist(), strict=True)
            for row, (request_id, context) in enumerate(pairs if spec.has_passes else ()):
                num_seen = min(
                    self._num_seen.get((number, request_id), context - int(lag[row])), context
                )
                self._num_seen[number, request_id] = num_seen  # the rest was rejected
                lag[row] = context - num_seen
            drafters.append(replace(drafter, lag=lag))
        return replace(view, drafters=tuple(drafters))

    def _remember_seen(self, view: BatchView, plan: Plan) -> None:
        # All but the last draft token are fed to the draft model; a head computes those anew when
        # it drafts again.
        for row in np.flatnonzero(plan.lengths > 0).tolist():
            number = int(plan.drafter[row])
            kept = 1 if self._drafters[number].makes_trees else plan.lengths[row]
            self._num_seen[number, int(view.request_ids[row])] = int(
                view.context_tokens[row] + kept
            )


def _recorded_kept(outcome: Outcome) -> np.ndarray:
    """Tokens each row emitted, as far as the record tells: int [R]."""
    successes, has_ended = successes_of(outcome)
    return np.where(has_ended, successes, successes + 1)
