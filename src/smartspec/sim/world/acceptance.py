"""The draft tokens that the target really accepts.

The ground truth is a tree of means. A workload class has a mean acceptance, which may change in
time. A request's mean is drawn from a Beta around that of its class. The acceptance probability of
a token at one output position is drawn from a Beta around the request's, lowered with its depth in
the draft. Whether it is accepted, given that those before it were, is then decided by a uniform
random number:

    accepted[i, j] = uniform[i, j] < conditional[i, j]

All of it is keyed by (seed, request, output position), see keyed_random: every policy meets the
same easy and hard tokens, and the same random numbers. A draft model and a model-free drafter are
two ground truths with two seeds.

Output position p is the number of tokens the request has emitted; draft token j = 0..K-1 after it
is output token p + 1 + j. A position is decided at most once in the life of a request: tokens after
a rejection are drafted anew.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from smartspec.control import DrafterView
from smartspec.sim.world.beta_table import BetaTable
from smartspec.sim.world.keyed_random import keyed_bits, request_keys, to_uniform

_UNIFORM, _REQUEST, _TOKEN, _CONFIDENCE, _FOUND, _FOUND_PHASE, _DIVERGENCE = range(7)
_LOGISTIC_STD = math.pi / math.sqrt(3)
_MIN_PROBABILITY = 1e-4
# simulated drafts look all alike: their acceptance does not depend on the length of a match
MATCH_LENGTH = 4
NUM_ALTERNATIVES = 20  # tokens over which entropy() spreads what is left
# Confidence of a token of acceptance a (sheet 05: simulating a noisy head): log-odds of a + BIAS +
# NOISE * z, z being logistic with standard deviation 1. It is a little overconfident.
BIAS, NOISE = 0.3, 0.7
# length of the stretches of text where a model-free drafter finds something, or does not
FOUND_RUN_TOKENS = 8


@dataclass(frozen=True)
class AcceptanceClass:
    """Drafts of one workload class."""

    mean: float  # acceptance of a draft's first token
    decay: float = 1.0  # each further token of a draft has decay times the mean of the one before
    later: float = 1.0  # of all tokens but the first, a factor beside that
    # request_concentration, token_concentration: of the Betas around the class mean and around the
    # request's; math.inf for no spread; their variance is m (1 - m) / (concentration + 1)
    request_concentration: float = math.inf
    token_concentration: float = math.inf
    # share of output positions at which a model-free drafter finds something
    found_share: float = 1.0
    # (second, mean from then on), ascending
    changes: tuple[tuple[float, float], ...] = ()

    def __post_init__(self):
        steps = ((0.0, self.mean), *self.changes)
        seconds = [second for second, _ in steps]
        if seconds != sorted(seconds) or not all(map(math.isfinite, seconds)):
            raise ValueError(f"steps are {steps}: give seconds in ascending order")
        for _, mean in steps:
            if not 0 <= mean <= 1:
                raise ValueError(f"mean {mean} does not lie between 0 and 1")

    def mean_at(self, now: float) -> float:
        """Return the mean at that second."""
        return next((mean for second, mean in reversed(self.changes) if now >= second), self.mean)


@dataclass(frozen=True)
class Places:
    """The rows of a batch at a moment: int [R] each, and seconds."""

    request_ids: np.ndarray
    output_positions: np.ndarray
    now: float = 0.0

    @property
    def pairs(self) -> Iterator[tuple[int, int]]:
        return zip(self.request_ids.tolist(), self.output_positions.tolist(), strict=True)


class GroundTruthAcceptance:
    """True acceptance of the drafts of one drafter.

    classes: by class id. max_draft_tokens: K. KeyError for requests that have not begun.
    """

    def __init__(
        self, classes: tuple[AcceptanceClass, ...], max_draft_tokens: int, *, seed: int = 0
    ):
        self.classes = classes
        self.max_draft_tokens = max_draft_tokens
        self._seed = seed
        self._depths = np.arange(max_draft_tokens)
        later = np.where(self._depths == 0, 1.0, np.array([c.later for c in classes])[:, None])
        self._decays = later * np.array([c.decay for c in classes])[:, None] ** self._depths
        self._requests_table = BetaTable([c.request_concentration for c in classes])
        self._tokens_table = BetaTable([c.token_concentration for c in classes])
        self._found_share = np.array([c.found_share for c in classes])
        self._class_of: dict[int, int] = {}
        self._last_rows: _Rows | None = None

    def begin(self, request_id: int, class_id: int = 0) -> None:
        """A request of that class starts."""
        self._class_of[request_id] = class_id
        self._last_rows = None

    def end(self, request_id: int) -> None:
        """Forget a request; unknown ones are ignored."""
        self._class_of.pop(request_id, None)
        self._last_rows = None

    def expected(self, at: Places) -> np.ndarray:
        """Acceptance of each depth given the request, its token unknown: float [R, K], read only.

        What perfect estimates know before tokens are drafted; tokens being independent, the product
        along a row is the true survival.
        """
        rows = self._rows(at)
        course = tuple(c.mean_at(at.now) for c in self.classes)
        if course != rows.course:
            rows.course, rows.means = course, self._means(rows, np.array(course))
        return rows.means

    def conditional(self, at: Places) -> np.ndarray:
        """Acceptance probability of each draft token given that those before it are accepted: float
        [R, K], read only."""
        means = self.expected(at)
        if not self._tokens_table.has_spread:
            return means
        class_ids = self._rows(at).class_ids
        return self._tokens_table.draw(means, class_ids[:, None], self._bits(_TOKEN, at))

    def uniform(self, at: Places) -> np.ndarray:
        """Uniform in [0, 1), for the output tokens p + 1 .. p + K: float [R, K]."""
        return to_uniform(self._bits(_UNIFORM, at))

    def num_right(self, at: Places) -> np.ndarray:
        """The number of draft tokens of each request that the target goes on with: int [R]."""
        return count_leading(self.uniform(at) < self.conditional(at))

    def confidence(self, at: Places, conditional: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The drafter's confidence in each token and its entropy(): two float [R, K].

        conditional: what conditional() says of the same tokens.
        """
        z = self._logistic(_CONFIDENCE, at)
        confidence = 1.0 / (1.0 + np.exp(-(BIAS + log_odds(conditional) + NOISE * z)))
        return confidence, entropy(confidence)

    def divergence(self, at: Places, conditional: np.ndarray) -> np.ndarray:
        """The Kullback-Leibler divergence (nats) of draft and target at each token: float [R, K].
        It is that of an acceptance whose log-odds are as noisy as those of confidence: two
        distributions differ in other ways too than those that decide on acceptance."""
        z = self._logistic(_DIVERGENCE, at)
        return divergence(1.0 / (1.0 + np.exp(-(log_odds(conditional) + NOISE * z))))

    def found(self, at: Places) -> DrafterView:
        """The draft of a model-free drafter: of full length or none."""
        rows = self._rows(at)
        phase = to_uniform(keyed_bits(rows.keys, _FOUND_PHASE, 0))
        stretch = np.floor(at.output_positions / FOUND_RUN_TOKENS + phase)
        found = (
            to_uniform(keyed_bits(rows.keys, _FOUND, stretch)) < self._found_share[rows.class_ids]
        )
        return DrafterView(self.max_draft_tokens * found, MATCH_LENGTH * found)

    def _rows(self, at: Places) -> "_Rows":
        """The constant values of these requests. A batch is looked up several times a step, and
        rarely changes."""
        ids = at.request_ids.tobytes()
        if self._last_rows is None or self._last_rows.ids != ids:
            classes = [self._class_of[i] for i in at.request_ids.tolist()]
            keys = request_keys(self._seed, at.request_ids)
            self._last_rows = _Rows(ids, np.array(classes, dtype=np.int64), keys)
        return self._last_rows

    def _means(self, rows: "_Rows", course: np.ndarray) -> np.ndarray:
        means = course[rows.class_ids]
        if self._requests_table.has_spread:
            means = self._requests_table.draw(
                means, rows.class_ids, keyed_bits(rows.keys, _REQUEST, 0)
            )
        means = means[:, None] * self._decays[rows.class_ids]
        means.flags.writeable = False
        return means

    def _logistic(self, stream: int, at: Places) -> np.ndarray:
        """Logistic noise of standard deviation 1: float [R, K]."""
        uniform = to_uniform(self._bits(stream, at))
        return log_odds(uniform) / _LOGISTIC_STD

    def _bits(self, stream: int, at: Places) -> np.ndarray:
        positions = at.output_positions[:, None] + 1 + self._depths
        return keyed_bits(self._rows(at).keys[:, None], stream, positions)


@dataclass
class _Rows:
    """A batch's requests: ids as bytes, class_ids int [R], keys uint64 [R]; means [R, K] while the
    course is that."""

    ids: bytes
    class_ids: np.ndarray
    keys: np.ndarray
    course: tuple[float, ...] = ()
    means: np.ndarray | None = None


def count_leading(is_right: np.ndarray) -> np.ndarray:
    """Length of the run of True at the beginning of each row: bool [R, K] to int [R]."""
    return np.where(is_right.all(axis=1), is_right.shape[1], is_right.argmin(axis=1))


def log_odds(probability: np.ndarray) -> np.ndarray:
    """log(p / (1 - p)), bounded."""
    probability = np.minimum(np.maximum(probability, _MIN_PROBABILITY), 1.0 - _MIN_PROBABILITY)
    return np.log(probability / (1.0 - probability))


def entropy(confidence: np.ndarray) -> np.ndarray:
    """Entropy (nats) of a distribution whose largest probability is confidence, the rest being
    spread evenly over NUM_ALTERNATIVES other tokens; a confidence below an even share counts as
    one.
    """
    top = np.minimum(np.maximum(confidence, 1.0 / (NUM_ALTERNATIVES + 1)), 1.0 - 1e-12)
    return -top * np.log(top) - (1.0 - top) * np.log((1.0 - top) / NUM_ALTERNATIVES)


def divergence(conditional: np.ndarray) -> np.ndarray:
    """Kullback-Leibler divergence (nats) of draft from target distribution at a token accepted with
    that probability.

    A deterministic draft is a point mass on its token, accepted with the target's probability p of
    it, so the divergence is exactly -log p. For sampled drafts (acceptance 1 - total variation) the
    same formula serves as a stand-in: it keeps the Bretagnolle-Huber bound, total variation <=
    sqrt(1 - exp(-divergence)).
    """
    return -np.log(np.maximum(conditional, _MIN_PROBABILITY))
