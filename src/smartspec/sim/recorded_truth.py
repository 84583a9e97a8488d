"""Acceptance as it was recorded on a live engine: the same stretches of easy and hard text, request by request."""

from collections.abc import Sequence

import numpy as np

from smartspec.sim.acceptance_truth import DEFAULT_CONFIDENCE, AcceptanceClass, AcceptanceTruth, Confidence, Constant


def outcomes_of_steps(accepted: Sequence[int], verified: Sequence[int]) -> np.ndarray:
    """One request's steps as one outcome per output token behind its first: float, 1 accepted, 0 rejected, NaN unknown.

    accepted, verified: draft tokens of each step, in order. A step that accepts all it verifies emits a bonus token of
    which nothing is known. ValueError if more was accepted than verified.
    """
    outcomes = []
    for num_accepted, num_verified in zip(accepted, verified, strict=True):
        if not 0 <= num_accepted <= num_verified:
            raise ValueError(f"a recorded step accepted {num_accepted} of {num_verified} tokens: the log is corrupt")
        outcomes += [1.0] * num_accepted + [0.0 if num_accepted < num_verified else np.nan]
    return np.array(outcomes)


class RecordedTruth(AcceptanceTruth):
    """Replays recordings: request i meets recording i mod N, from its start, again and again if it runs longer.

    recordings: float arrays of outcomes, see outcomes_of_steps; unknown outcomes are drawn with the recording's own
    acceptance rate. Time and class change nothing. offer_share, offer_run_tokens: as in AcceptanceClass.
    """

    def __init__(
        self,
        recordings: Sequence[np.ndarray],
        max_draft_tokens: int,
        *,
        seed: int = 0,
        confidence: Confidence = DEFAULT_CONFIDENCE,
        offer_share: float = 1.0,
        offer_run_tokens: int = 8,
    ):
        if not recordings or not all(np.isfinite(outcomes).any() for outcomes in recordings):
            raise ValueError(f"{len(recordings)} recordings: each needs at least one known outcome, and one is needed")
        offers = AcceptanceClass(Constant(0.0), offer_share=offer_share, offer_run_tokens=offer_run_tokens)
        super().__init__((offers,), max_draft_tokens, seed=seed, confidence=confidence)
        self._lengths = np.array([len(outcomes) for outcomes in recordings])
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)[:-1]])
        self._rates = np.array([np.nanmean(outcomes) for outcomes in recordings])
        filled = [np.where(np.isnan(o), rate, o) for o, rate in zip(recordings, self._rates, strict=True)]
        self._outcomes = np.concatenate(filled)

    def begin(self, request_id: int, class_id: int = 0) -> None:
        """A request starts; its class does not matter here."""
        super().begin(request_id, 0)

    def expected(self, request_ids: np.ndarray, now: float, output_positions: np.ndarray) -> np.ndarray:
        """The recording's acceptance rate at every depth: float [R, K]."""
        rates = self._rates[request_ids % len(self._rates)]
        return np.repeat(rates[:, None], self.max_draft_tokens, axis=1)

    def conditional(self, request_ids: np.ndarray, now: float, output_positions: np.ndarray) -> np.ndarray:
        """What was recorded: float [R, K], 0 or 1, or the recording's rate where nothing was tested."""
        recording = request_ids % len(self._lengths)
        # The first token of an output comes from the prefill; the recording begins with the one behind it.
        index = (output_positions[:, None] - 1 + self._depths) % self._lengths[recording][:, None]
        return self._outcomes[self._starts[recording][:, None] + index]

    def confidence(
        self, request_ids: np.ndarray, output_positions: np.ndarray, conditional: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Around the recording's rate, not around the outcome, which no drafter knows beforehand."""
        expected = self.expected(request_ids, 0.0, output_positions)
        return super().confidence(request_ids, output_positions, expected)
