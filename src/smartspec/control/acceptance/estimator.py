"""The probability that draft tokens are accepted, learned from tested ones.

The model is a logistic one: the j-th draft token of request r, given that those before it were
accepted, is accepted with probability

    sigmoid(table[pool, j] + class effect + request effect)

(modules table and effects). Only tested positions count as observations, which makes the estimate
unbiased under censoring: a rejection hides everything after it, so positions up to the first
rejection are observations. This is the maximum-likelihood estimate of a truncated geometric
distribution. The rate accepted / drafted would be biased: it gives 0.54 for a true 0.8 at five
draft tokens. Once drafts exist, the confidence of their drafter replaces the entry of the table
(calibration).

For trees the positions of the table are depths. An observation says that the accepted path went on
at a depth, or ended. Trees made in passes are planned before they exist. For them an observation is
of the top-1 child, as in a chain; the chances of the other children are learned by rank
(child_ranks). The worth of a node is its drafter's calibrated confidence, times that of all its
ancestors.
"""

from collections.abc import Sequence

import numpy as np

from smartspec.control.acceptance.calibration import ConfidenceCalibration
from smartspec.control.acceptance.child_ranks import ChildRankAcceptance
from smartspec.control.acceptance.effects import AcceptanceEffects
from smartspec.control.acceptance.logistic import newton_terms, sigmoid
from smartspec.control.acceptance.observations import Observations, top_child_tests
from smartspec.control.acceptance.table import AcceptanceTable, Pools
from smartspec.control.records import BatchView, DrafterSpec, Outcome, depths_of, of_drafter


class AcceptanceEstimator:
    """Learns acceptance and predicts survival for drafts of up to max_draft_tokens (K) tokens.

    drafters: in the order of their numbers, D of them. In all methods view holds the R rows of a
    step. Survival, never increasing along a row, is the probability that the first j draft tokens
    are all accepted, j = 1..K.
    """

    def __init__(
        self,
        max_draft_tokens: int,
        drafters: tuple[DrafterSpec, ...],
    ):
        self.max_draft_tokens = max_draft_tokens
        self._drafters = drafters
        self._pools = Pools(drafters)
        self._table = AcceptanceTable(max_draft_tokens, self._pools)
        self._effects = AcceptanceEffects(len(drafters))
        self._calibrations = tuple(ConfidenceCalibration() for _ in drafters)
        self._child_ranks = {
            n: ChildRankAcceptance() for n, each in enumerate(drafters) if each.makes_trees
        }
        self._idle_steps = 0  # since something was tested
        # The next steps of the same requests need the same effects, until something is learned or
        # forgotten.
        self._rows: tuple[bytes, bytes] | None = None
        self._effects_of_rows = np.zeros((len(drafters), 0))

    def survival(self, view: BatchView) -> np.ndarray:
        """Return the survival of the drafts of each drafter, by all that is known before drafting:
        float [D, R, K]."""
        survival = _survival(self._history(view))
        for number, (spec, drafter) in enumerate(zip(self._drafters, view.drafters, strict=True)):
            if spec.one_pass_depth:
                survival[number, :, spec.one_pass_depth :] = 0.0
            if drafter.confidence is not None:
                numbers = np.full(view.num_rows, number)
                survival[number] = self.survival_given_confidence(
                    view, numbers, drafter.confidence, drafter.parents
                )
        return survival

    def survival_given_confidence(
        self,
        view: BatchView,
        drafter: np.ndarray,
        confidence: np.ndarray,
        parents: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the survival of drafts that exist: float [R, K]. drafter: int [R], of each draft.
        confidence, parents: [R, K], see records.Drafted. Tokens of confidence NaN are estimated by
        history alone."""
        log_odds = _by_node(_of_drafter(self._history(view), drafter), parents)
        confidence = confidence.T
        is_known = ~np.isnan(confidence)
        for number, calibration in enumerate(self._calibrations):
            known = is_known if len(self._calibrations) == 1 else is_known & (drafter == number)
            by_confidence = calibration.log_odds(np.where(known, confidence, 0.0), log_odds)
            log_odds = np.where(known, by_confidence, log_odds)
        return _survival(log_odds) if parents is None else _tree_survival(log_odds, parents)

    def has_confidence(self, drafter: int) -> bool:
        """True if that drafter ever reported the confidence of a token that was then tested."""
        return self._calibrations[drafter].has_learned

    def odds_given_confidence(
        self, drafter: int, history: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the odds of acceptance of tokens of that drafter in two factors: by confidence
        (see grid_index) and by history. history: float [...], the log-odds by all that was known
        before drafting."""
        calibration = self._calibrations[drafter]
        return np.exp(calibration.curve), np.exp(calibration.shift(history))

    def expect(self, drafter: int, acceptance: Sequence[float], tested: Sequence[int]) -> None:
        """Begin with acceptance of a drafter that was measured elsewhere. Nothing is done where the
        drafter has several pools.

        acceptance: by position, where the tokens before were accepted. tested: by position, draft
        tokens that were tested."""
        pools = np.flatnonzero(self._pools.drafters == drafter)
        if len(pools) == 1:
            self._table.expect(int(pools[0]), acceptance, tested)

    def observe(self, steps: Sequence[Outcome]) -> None:
        """Learn from finished steps, all at once."""
        observations = Observations.of(steps)
        tested, accepted = observations.tests(self.max_draft_tokens)
        for number, child_ranks in self._child_ranks.items():
            self._learn_trees(number, child_ranks, observations, tested, accepted)
        known = self._effects.rows(observations.request_ids)
        effects = self._effects.of(known, observations.class_ids)
        pools = self._pools.of(observations.match_lengths)
        history = self._table.of(pools) + effects
        self._learn_confidence(observations, history, tested, accepted)
        observations.add_free_tests(tested, accepted)
        self._idle_steps += observations.num_steps
        if tested.any():
            # estimates fade only when there are new observations
            num_steps, self._idle_steps = self._idle_steps, 0
            rows = self._effects.rows_to_learn(
                observations.request_ids, observations.class_ids, tested[0].any(axis=0)
            )
            information, residual = self._learn_table(pools, history, tested, accepted, num_steps)
            self._effects.learn(rows, effects, information, residual, num_steps)
        self._rows = None

    @property
    def rank_chances(self) -> dict[int, np.ndarray]:
        """The chance that a node's second, third, ... child is right where its first is wrong:
        float [ranks] for each drafter that makes trees, by number."""
        return {number: child_ranks.chances for number, child_ranks in self._child_ranks.items()}

    def forget(self, request_id: int) -> None:
        """Drop a request that has ended. Its contribution to its class stays. Unknown ones are
        ignored."""
        self._effects.forget(request_id)
        self._rows = None

    @property
    def num_tracked_requests(self) -> int:
        return self._effects.num_tracked_requests

    def table(self) -> dict:
        """Return, JSON-able, the conditional acceptance of a request without a class or a history
        by pool and position, the fading observations that it rests on (roughly), and the
        calibrations."""
        pairs = zip(self._drafters, self._calibrations, strict=True)
        calibrations = {
            f"calibration of {drafter.name}": calibration.table() for drafter, calibration in pairs
        }
        return self._table.table() | calibrations

    def _history(self, view: BatchView) -> np.ndarray:
        """Return the log-odds of each position by all that is known before drafting: float [K, D,
        R]. Positions come first: sums over rows and positions are then contiguous."""
        rows = view.request_ids.tobytes(), view.class_ids.tobytes()
        if rows != self._rows:
            known = self._effects.rows(view.request_ids)
            self._rows, self._effects_of_rows = rows, self._effects.of(known, view.class_ids)
        return self._table.of(self._pools.of(view.match_lengths)) + self._effects_of_rows

    def _learn_table(
        self,
        pools: np.ndarray,
        history: np.ndarray,
        tested: np.ndarray,
        accepted: np.ndarray,
        num_steps: int,
    ) -> np.ndarray:
        """Update the table. Return the information and the residual that are left for each row:
        float [2, D, R].

        The table learns first, then the rows given the new table. Otherwise both would explain the
        whole residual.
        """
        information, residual = newton_terms(sigmoid(history), tested, accepted)
        moved = self._table.learn(pools, information, residual, num_steps).take(pools, axis=1)
        information, residual = newton_terms(sigmoid(history + moved), tested, accepted)
        return np.array([information.sum(axis=0), residual.sum(axis=0)])

    def _learn_trees(
        self,
        number: int,
        child_ranks: ChildRankAcceptance,
        observations: Observations,
        tested: np.ndarray,
        accepted: np.ndarray,
    ) -> None:
        """Learn the chances by child rank, and write into tested and accepted (float [K, D, R]) the
        tests of a chain of top-1 children."""
        rows = np.flatnonzero(observations.drafter == number)
        if observations.parents is None or observations.node_tests is None or not len(rows):
            return
        parents, node_tests = observations.parents[rows], observations.node_tests[rows]
        child_ranks.learn(parents, node_tests)
        tested[:, number, rows], accepted[:, number, rows] = top_child_tests(parents, node_tests)

    def _learn_confidence(
        self,
        observations: Observations,
        history: np.ndarray,
        tested: np.ndarray,
        accepted: np.ndarray,
    ) -> None:
        """Update the calibrations. Then write into tested and accepted (float [K, D, R]) the
        expected outcome of the first draft token that was cut. Without that, the table would learn
        from confident tokens only, and it is used to plan drafts before they exist."""
        if observations.confidence is None:
            return
        drafter, confidence = observations.drafter, observations.confidence.T
        log_odds = _by_node(_of_drafter(history, drafter), observations.parents)
        is_known, is_cut = ~np.isnan(confidence), observations.first_cut(len(tested))
        outcomes = observations.outcomes(len(tested))
        for number, calibration in enumerate(self._calibrations):
            known = is_known & (drafter == number)
            if not known.any():
                continue
            seen = known & (outcomes >= 0)
            calibration.learn(
                confidence[seen],
                log_odds[seen],
                outcomes[seen].astype(float),
                observations.num_steps,
            )
            if (cut := known & is_cut).any():
                tested[:, number][cut] = 1.0
                accepted[:, number][cut] = sigmoid(
                    calibration.log_odds(confidence[cut], log_odds[cut])
                )


def _of_drafter(log_odds: np.ndarray, drafter: np.ndarray) -> np.ndarray:
    """Return the log-odds of the drafts of these drafters (int [R]): float [K, R] of [K, D, R]."""
    return of_drafter(log_odds.transpose(1, 2, 0), drafter).T


def _by_node(log_odds: np.ndarray, parents: np.ndarray | None) -> np.ndarray:
    """Return the log-odds of each depth, float [K, R], for each node of trees. parents: int [R, K];
    None: chains."""
    return (
        log_odds
        if parents is None
        else np.take_along_axis(log_odds, depths_of(parents).T - 1, axis=0)
    )


def _tree_survival(log_odds: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """Return the survival of the nodes of trees: float [R, K]. log_odds: float [K, R], given that
    parents are accepted.

    It never increases along a row. The drafter's order of nodes stays: a node that would be
    likelier than one before it counts as equally likely.
    """
    acceptance, rows = sigmoid(log_odds), np.arange(len(parents))
    survival = np.ones((len(acceptance) + 1, len(parents)))  # first the text, then the nodes
    for node, of_node in enumerate(acceptance):
        survival[node + 1] = of_node * survival[parents[:, node] + 1, rows]
    return np.minimum.accumulate(survival[1:], axis=0).T


def _survival(log_odds: np.ndarray) -> np.ndarray:
    """Return survival, float [..., K], from conditional log-odds, [K, ...]."""
    survival = sigmoid(log_odds).cumprod(axis=0)
    return survival.transpose(*range(1, survival.ndim), 0)
