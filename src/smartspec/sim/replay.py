"""Any policy on a recorded log: what it would have chosen in every recorded step, and what that would have brought.

A policy is run by a controller of its own, which starts from the log's profile and learns from what the replay tells
it. What happens to its drafts is told by the log wherever the log knows: a draft from the same source (offer or draft
model) begins with the same tokens, so what was tested then is tested now (exact where drafts are deterministic chains,
and for sampled ones where randomness is keyed by position, as in our engine). Beyond that, acceptance is drawn from
what the whole log says in hindsight, with the same luck for every policy; see hindsight for the time of a step.

What a replay can tell: how policies compare, step for step, in the situations that were recorded, and how much of the
answer is evidence. What it cannot tell: where another policy would have led. Batches, contexts and arrivals follow the
recorded run, whatever a policy emits. Where easy requests left early, the log is full of small batches, in which drafts
pay; plain decoding would have kept those requests, and the batch large. So compare speeds within one table, and take
them for the speed of a whole run only where the load was steady.
Tokens that were never drafted have no outcome in the log: a log of a server with drafts off says little about drafts,
and a policy that differs much from the recorded one is judged by the hindsight model (the share of steps that needed
no luck is reported). Policies that stop drafting by the entropy of the draft model never stop here, as logs do not
hold it; confidence is known only where the draft model drafted.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from smartspec.control.controller import Controller
from smartspec.control.latency.model import LatencyModel
from smartspec.control.log.decision import DecisionRecord, LogHeader
from smartspec.control.policy import length_caps
from smartspec.control.policy_names import parse_policy
from smartspec.control.records import BatchView, Drafted, DraftPlan, StepFeedback
from smartspec.sim.hindsight import HindsightAcceptance, HindsightSeconds
from smartspec.sim.recorded_log import RecordedLog


@dataclass
class ReplayTotals:
    """Sums over the steps of a log. num_rows: decoding requests; num_from_evidence: steps that needed no luck."""

    policy: str
    num_steps: int = 0
    num_rows: int = 0
    num_emitted: int = 0
    num_verified: int = 0
    num_from_evidence: int = 0
    seconds: float = 0.0

    def add(self, feedback: StepFeedback, from_evidence: bool = True) -> None:
        """Count a step."""
        self.num_steps += 1
        self.num_rows += feedback.view.num_rows
        self.num_emitted += feedback.num_emitted
        self.num_verified += int(feedback.verified.sum())
        self.num_from_evidence += from_evidence
        self.seconds += feedback.seconds.total

    @property
    def tokens_per_second(self) -> float:
        return self.num_emitted / self.seconds

    @property
    def mean_length(self) -> float:
        """Draft tokens verified per decoding request and step."""
        return self.num_verified / max(self.num_rows, 1)

    @property
    def evidence_share(self) -> float:
        return self.num_from_evidence / max(self.num_steps, 1)


def replay(log: RecordedLog, policies: list[str], seed: int = 0) -> tuple[ReplayTotals, list[ReplayTotals]]:
    """What was recorded, and what each policy (see control.policies.names) would have brought.

    Reads the log twice. ValueError on an unknown policy, a corrupt log, or one without a token.
    """
    header = log.header
    for policy in policies:
        parse_policy(policy, header.max_draft_tokens)
    recorded = ReplayTotals(header.policy)
    acceptance = HindsightAcceptance(header.max_draft_tokens)
    seconds = HindsightSeconds(LatencyModel.from_dict(header.profile))
    last_step: dict[int, int] = {}
    for step, record in enumerate(log):
        recorded.add(record.feedback)
        acceptance.add(record)
        seconds.add(record)
        last_step |= dict.fromkeys(record.view.request_ids.tolist(), step)
    if not recorded.num_steps:
        raise ValueError(f"{log.path} holds no step: let the server work before it is stopped")
    if not recorded.num_emitted:
        raise ValueError(f"{log.path} holds no step that emitted a token: let the server work before it is stopped")
    acceptance.fit()
    replays = [PolicyReplay(header, policy, acceptance, seconds) for policy in policies]
    random = np.random.default_rng(seed)
    for step, record in enumerate(log):
        luck = random.random((record.view.num_rows, header.max_draft_tokens))
        ended = [i for i in record.view.request_ids.tolist() if last_step[i] == step]
        for policy_replay in replays:
            policy_replay.step(record, luck, ended)
    return recorded, [policy_replay.totals for policy_replay in replays]


class PolicyReplay:
    """One policy on its way through a log."""

    def __init__(self, header: LogHeader, policy: str, acceptance: HindsightAcceptance, seconds: HindsightSeconds):
        self.totals = ReplayTotals(policy)
        self._max_draft_tokens = header.max_draft_tokens
        self._has_model = header.has_model
        self._controller = Controller(
            policy,
            header.max_draft_tokens,
            LatencyModel.from_dict(header.profile),
            has_offers=header.has_offers,
            has_model=header.has_model,
        )
        self._acceptance = acceptance
        self._seconds = seconds
        self._num_seen: dict[int, int] = {}  # tokens in the draft model's KV, by request

    def step(self, record: DecisionRecord, luck: np.ndarray, ended: list[int]) -> None:
        """Ask for a plan, tell what came of it. luck: float [R, K], uniform; ended: requests seen for the last time."""
        view = replace(record.view, unseen_tokens=self._unseen_tokens(record))
        plan = self._possible(view, self._controller.plan_draft(view))
        drafted = _draft(record, plan)
        plan = replace(plan, lengths=drafted.lengths)
        verified = np.minimum(self._controller.plan_verify(view, plan, drafted), drafted.lengths)
        fate = chain_fates(record, plan.use_model, self._acceptance.conditional(record.view, plan.use_model), luck)
        feedback = self._feedback(record, view, plan, drafted, verified, fate)
        self._controller.observe(feedback)
        self.totals.add(feedback, from_evidence=bool((verified <= fate.num_known).all()))
        self._remember_seen(view, plan)
        for request_id in ended:
            self._controller.forget(request_id)
            self._num_seen.pop(request_id, None)

    def _possible(self, view: BatchView, plan: DraftPlan) -> DraftPlan:
        """The plan, cut to what the drafters and the KV memory could give, as the engine does."""
        lengths = np.minimum(plan.lengths, length_caps(view, plan.use_model, self._max_draft_tokens))
        room = view.draft_token_budget - (np.cumsum(lengths) - lengths)
        return replace(plan, lengths=np.clip(lengths, 0, np.maximum(room, 0)))

    def _feedback(
        self,
        record: DecisionRecord,
        view: BatchView,
        plan: DraftPlan,
        drafted: Drafted,
        verified: np.ndarray,
        fate: "ChainFates",
    ) -> StepFeedback:
        accepted = np.minimum(fate.num_accepted, verified)
        num_kept = np.minimum(accepted + 1, fate.max_emitted)
        offered = np.where(plan.use_model, 0, view.offers.lengths)
        is_known = (accepted == verified) & (num_kept > accepted) & (verified < offered) & (verified < fate.num_known)
        then = record.feedback
        return StepFeedback(
            view=view,
            plan=plan,
            drafted=drafted.lengths,
            verified=verified,
            tested=np.minimum(np.minimum(verified, accepted + 1), num_kept),
            accepted=accepted,
            next_match=np.where(is_known, fate.num_accepted > verified, -1),
            num_emitted=then.num_emitted + int((num_kept - _recorded_kept(then)).sum()),
            seconds=self._seconds.seconds(record, view, plan, verified),
            confidence=drafted.confidence,
            divergence=_as_recorded(record, then.divergence, plan.use_model, verified),
        )

    def _unseen_tokens(self, record: DecisionRecord) -> np.ndarray:
        """Tokens the draft model would have to catch up on had this policy decided so far: int [R].

        A request begins as it was recorded.
        """
        view = record.view
        if not self._has_model:
            return view.unseen_tokens
        num_unseen = np.zeros(view.num_rows, dtype=np.int64)
        for row, (request_id, context) in enumerate(
            zip(view.request_ids.tolist(), view.context_tokens.tolist(), strict=True)
        ):
            num_seen = self._num_seen.get(request_id, context - int(view.unseen_tokens[row]))
            self._num_seen[request_id] = min(num_seen, context)  # the rest was rejected
            num_unseen[row] = context - self._num_seen[request_id]
        return num_unseen

    def _remember_seen(self, view: BatchView, plan: DraftPlan) -> None:
        # All but the last draft token are fed to the draft model.
        for row in np.flatnonzero(plan.use_model & (plan.lengths > 0)).tolist():
            self._num_seen[int(view.request_ids[row])] = int(view.context_tokens[row] + plan.lengths[row])


@dataclass(frozen=True)
class ChainFates:
    """What would happen to drafts of full length. num_accepted: int [R], tokens accepted before the first rejection.

    num_known: int [R], drafts of up to this length have a recorded outcome. max_emitted: int [R], tokens after which
    the request ended (a large number where it did not).
    """

    num_accepted: np.ndarray
    num_known: np.ndarray
    max_emitted: np.ndarray = field(repr=False)


def chain_fates(record: DecisionRecord, use_model: np.ndarray, conditional: np.ndarray, luck: np.ndarray) -> ChainFates:
    """The fate of drafts from these sources (bool [R]): recorded as far as the log goes, then by luck.

    conditional, luck: float [R, K]; a token is accepted where luck is below its conditional acceptance.
    """
    feedback, endless = record.feedback, luck.shape[1] + 1
    is_same = feedback.plan.use_model == use_model
    successes, has_ended = _successes(feedback)
    is_decided = (successes < feedback.tested) | has_ended
    # Free evidence: the token behind a fully accepted draft.
    is_free = ~is_decided & (feedback.next_match >= 0)
    certain = np.where(is_same, successes + (is_free & (feedback.next_match == 1)), 0)
    is_decided = is_same & (is_decided | (is_free & (feedback.next_match == 0)))
    is_lucky = (luck < conditional) | (np.arange(luck.shape[1]) < certain[:, None])
    num_lucky = np.cumprod(is_lucky, axis=1).sum(axis=1)
    return ChainFates(
        num_accepted=np.where(is_decided, certain, num_lucky),
        num_known=np.where(is_decided, endless, certain),
        max_emitted=np.where(has_ended & is_same, successes, endless),
    )


def _draft(record: DecisionRecord, plan: DraftPlan) -> Drafted:
    """The drafts of a plan: confidence as recorded where the same source drafted then; the plan's stop rule applied."""
    confidence = _as_recorded(record, record.feedback.confidence, plan.use_model, plan.lengths)
    if confidence is None or plan.stop is None:
        return Drafted(plan.lengths, confidence)
    lengths = plan.lengths.copy()
    for depth in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(plan.use_model & (lengths > depth))
        stops = plan.stop(depth, rows, confidence[rows, depth], np.full(len(rows), np.nan))
        lengths[rows[stops]] = depth + 1
    return Drafted(lengths, _as_recorded(record, confidence, plan.use_model, lengths))


def _as_recorded(
    record: DecisionRecord, values: np.ndarray | None, use_model: np.ndarray, lengths: np.ndarray
) -> np.ndarray | None:
    """What was recorded of the first lengths[i] tokens of drafts from the same source: float [R, K], NaN elsewhere."""
    if values is None:
        return None
    is_same = (use_model == record.feedback.plan.use_model)[:, None]
    return np.where(is_same & (np.arange(values.shape[1]) < lengths[:, None]), values, np.nan)


def _recorded_kept(feedback: StepFeedback) -> np.ndarray:
    """Tokens each row emitted, as far as the record tells: int [R]."""
    successes, has_ended = _successes(feedback)
    return np.where(has_ended, successes, successes + 1)


def _successes(feedback: StepFeedback) -> tuple[np.ndarray, np.ndarray]:
    """Tokens accepted and kept, int [R], and whether the request ended with the last of them, bool [R]."""
    successes = np.minimum(feedback.accepted, feedback.tested)
    return successes, (feedback.tested < feedback.verified) & (successes == feedback.tested)
