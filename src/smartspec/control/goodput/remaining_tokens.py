"""How many tokens a request still generates, by how many it has generated: learned from when others ended.

Answers are not alike: of Azure's code trace half have 13 tokens or fewer, yet a request that has made 32 makes 63 more
on average, and one met at a random moment 81, three times the mean length. What is worth while for a request
depends on that, not on the mean.

Hazard rates by generated tokens, in groups (piecewise constant: the life table, or actuarial, estimator): ends in a
group over tokens made in it. Requests that still run count with what they have made so far, so short ones, which end
first, do not bias it.
"""

import numpy as np

from smartspec.control.records import BatchView, StepFeedback

STARTS = np.concatenate([[0], 4 * 2 ** np.arange(10)])  # generated tokens at which groups begin: 0, 4, 8, ... 2048
WIDTHS = np.append(np.diff(STARTS), 1 << 20).astype(float)
ENDED_RATE = 1 / 128  # about so many ended requests count
PRIOR_REQUESTS = 4.0  # that made PRIOR_TOKENS each, so that the first few to end do not decide
# A guess. At twice that a large draft model was prefilled with the first prompts of short answers for nothing, and on a
# busy server the queue that this made took long to go.
PRIOR_TOKENS = 160.0
PRIOR_ENDS = 1.0  # in each group, at the rate of all


class RemainingTokens:
    """Learns from every step and every request that ends."""

    def __init__(self):
        self._made = np.zeros(len(STARTS))  # tokens, by group of generated tokens
        self._ended = np.zeros(len(STARTS))
        self._first_context: dict[int, int] = {}  # tokens of context when a request began to decode
        self._rows = self._first = np.zeros(0, dtype=np.int64)  # request ids last looked up, and what was found
        self._request_ids = self._generated = np.zeros(0, dtype=np.int64)  # of the last step
        self._update()

    @property
    def of_new(self) -> float:
        """Tokens that a request is expected to make in all."""
        return float(self._behind[0])

    def of(self, view: BatchView) -> np.ndarray:
        """Tokens that each decoding request is expected to make yet: float [R]."""
        generated = self._generated_by(view)
        group = _group(generated)
        to_come = STARTS[group] + WIDTHS[group] - generated  # in the group
        ends = -np.expm1(-self._hazard[group] * to_come)  # chance to end within the group
        return ends / self._hazard[group] + (1.0 - ends) * self._behind[group + 1]

    def observe(self, feedback: StepFeedback) -> None:
        """Learn from a finished step."""
        self._request_ids, self._generated = feedback.view.request_ids, self._generated_by(feedback.view)
        self._made += np.bincount(_group(self._generated), 1.0 + feedback.accepted, minlength=len(STARTS))

    def request_ended(self, request_id: int) -> None:
        """Learn that a request is gone; one that was not decoding says nothing."""
        self._first_context.pop(request_id, None)
        generated = self._generated[self._request_ids == request_id]
        if not len(generated):
            return
        self._made *= 1.0 - ENDED_RATE
        self._ended *= 1.0 - ENDED_RATE
        self._ended[_group(generated)] += 1.0
        self._update()

    def _generated_by(self, view: BatchView) -> np.ndarray:
        if not np.array_equal(view.request_ids, self._rows):
            pairs = zip(view.request_ids.tolist(), view.context_tokens.tolist(), strict=True)
            first = [self._first_context.setdefault(request_id, context) for request_id, context in pairs]
            self._rows, self._first = view.request_ids, np.array(first, dtype=np.int64)
        return np.maximum(view.context_tokens - self._first, 0)

    def _update(self) -> None:
        """Hazard of each group, and tokens expected from each group's beginning on (none behind the last)."""
        of_all = (self._ended.sum() + PRIOR_REQUESTS) / (self._made.sum() + PRIOR_REQUESTS * PRIOR_TOKENS)
        self._hazard = (self._ended + PRIOR_ENDS) / (self._made + PRIOR_ENDS / of_all)
        self._behind = np.zeros(len(STARTS) + 1)
        ends = -np.expm1(-self._hazard * WIDTHS)
        for group in reversed(range(len(STARTS))):
            self._behind[group] = ends[group] / self._hazard[group] + (1.0 - ends[group]) * self._behind[group + 1]


def _group(generated: np.ndarray) -> np.ndarray:
    return STARTS.searchsorted(generated, side="right") - 1
