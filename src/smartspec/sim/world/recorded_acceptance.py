"""Acceptance as it was recorded on a live engine: the same stretches of easy and hard text, request
by request."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from smartspec.control import DecisionRecord, DrafterView
from smartspec.control.records import of_drafter
from smartspec.sim.world.acceptance import AcceptanceClass, GroundTruthAcceptance, Places
from smartspec.sim.world.recorded_ranks import ALL, UNKNOWN, recorded_ranks


@dataclass(frozen=True)
class Recording:
    """One request, by output token after its first."""

    outcomes: np.ndarray  # float [N], 1 accepted, 0 rejected, NaN unknown
    # found, match_lengths: int [N], lengths of the model-free draft there was in the step that
    # emitted the token and of its match, see control.records.DrafterView
    found: np.ndarray
    match_lengths: np.ndarray


def read_recordings(log: Iterable[DecisionRecord]) -> list[Recording]:
    """The requests of a decision log, in order of their ids. A log of the longest fixed length
    knows most: a step that accepts all it verifies emits a bonus token of which nothing is known.
    Of a tree, only the top-1 child counts, as a chain has no other. What was found is that of the
    row's drafter, or of the one with the longest match where none drafted."""
    tokens = defaultdict(list)  # by request: outcome, found length, match length
    for record in log:
        view, outcome = record.view, record.outcome
        longest = view.match_lengths.argmax(axis=0) if view.drafters else outcome.plan.drafter
        drafter = np.where(outcome.plan.drafter < 0, longest, outcome.plan.drafter)
        lengths_found, match_lengths = (
            of_drafter(view.draft_lengths, drafter),
            of_drafter(view.match_lengths, drafter),
        )
        ranks, wrong = recorded_ranks(outcome, 1 + int(outcome.accepted.max(initial=0)))
        is_right = np.where(
            ranks == UNKNOWN, np.where((wrong > 0) & (wrong < ALL), 0.0, np.nan), ranks == 0
        )
        for row, request_id in enumerate(view.request_ids.tolist()):
            found = lengths_found[row], match_lengths[row]
            rights = is_right[row, : int(outcome.accepted[row]) + 1].tolist()
            tokens[request_id] += [(right, *found) for right in rights]
    columns = [np.array(tokens[request_id]).T for request_id in sorted(tokens)]
    return [Recording(each[0], *each[1:].astype(np.int64)) for each in columns]


class RecordedGroundTruth(GroundTruthAcceptance):
    """Replays recordings: request i meets recording i mod N, from its start, again and again if it
    runs longer.

    Unknown outcomes are drawn with the recording's own acceptance rate, that of all recordings
    where it has none. Time and class change nothing. ValueError if nothing is known at all.
    """

    def __init__(self, recordings: Sequence[Recording], max_draft_tokens: int, *, seed: int = 0):
        outcomes = np.concatenate([recording.outcomes for recording in recordings] or [np.empty(0)])
        is_known = ~np.isnan(outcomes)
        if not is_known.any():
            raise ValueError(
                f"{len(recordings)} recordings without a single tested draft token: record with "
                "drafts on"
            )
        super().__init__((AcceptanceClass(0.0),), max_draft_tokens, seed=seed)
        self._lengths = np.array([len(recording.outcomes) for recording in recordings])
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)[:-1]])
        num_known = np.add.reduceat(is_known.astype(float), self._starts)
        num_accepted = np.add.reduceat(np.where(is_known, outcomes, 0.0), self._starts)
        overall = outcomes[is_known].mean()
        self._rates = np.where(num_known > 0, num_accepted / np.maximum(num_known, 1.0), overall)
        self._outcomes = np.where(is_known, outcomes, np.repeat(self._rates, self._lengths))
        self._found = np.concatenate([recording.found for recording in recordings])
        self._match_lengths = np.concatenate([recording.match_lengths for recording in recordings])

    def expected(self, at: Places) -> np.ndarray:
        """The recording's acceptance rate at every depth: float [R, K]."""
        rates = self._rates[at.request_ids % len(self._rates)]
        return np.repeat(rates[:, None], self.max_draft_tokens, axis=1)

    def conditional(self, at: Places) -> np.ndarray:
        """The recorded outcomes: float [R, K], 0 or 1, or the recording's rate where nothing was
        tested."""
        return self._outcomes[self._index(at, self._depths)]

    def found(self, at: Places) -> DrafterView:
        """The recorded lengths of drafts and matches."""
        index = self._index(at, np.zeros(1, dtype=np.int64))[:, 0]
        return DrafterView(
            np.minimum(self._found[index], self.max_draft_tokens), self._match_lengths[index]
        )

    def confidence(self, at: Places, conditional: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Confidence around the recording's rate. It is not around the outcome: no drafter knows
        that in advance."""
        return super().confidence(at, self.expected(at))

    def _index(self, at: Places, depths: np.ndarray) -> np.ndarray:
        """Of the tokens at these depths (int [N]) of drafts there, in all recordings: int [R,
        N]."""
        recording = (at.request_ids % len(self._lengths))[:, None]
        # The first token of an output comes from the prefill; the recording begins with the next
        # one.
        positions = at.output_positions[:, None] + depths - 1
        return self._starts[recording] + positions % self._lengths[recording]
