"""The linear latency model of SmartSpec (arXiv 2406.14066, section on the latency model; the
coefficients and the form of the draft's cost are those of the authors' prototype)."""

from dataclasses import dataclass

import numpy as np

from smartspec.control.estimates import Estimates
from smartspec.control.latency.nnls import solve_nnls
from smartspec.sim.length_table import even_view

# The grid on which the authors' prototype profiles.
PROFILE_CONTEXT_TOKENS = (128, 256, 512, 768, 1024, 1280, 1536, 1792, 2048)
PROFILE_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128)


@dataclass(frozen=True)
class LinearLatency:
    """Seconds of a step as a linear function of its size.

    target = constant + per_context_token * context tokens + per_fed_token * tokens fed
    draft  = draft_constant + depth * (draft_per_pass + draft_per_row * rows + draft_per_context_token * their context)

    and host seconds for everything else; at depth 0 the draft costs nothing.
    """  # noqa: E501

    constant: float
    per_context_token: float
    per_fed_token: float
    draft_constant: float = 0.0
    draft_per_pass: float = 0.0
    draft_per_row: float = 0.0
    draft_per_context_token: float = 0.0
    host: float = 0.0

    @staticmethod
    def fit(estimates: Estimates) -> "LinearLatency":
        """Least squares over the prototype's grid, of times predicted by the profile as it is now,
        without later corrections.

        The coefficients are kept non-negative: the prototype's negative one per request explodes
        beyond its grid.
        """
        target, draft = _profile_target(estimates), _profile_draft(estimates)
        coefficients = [
            *_least_squares(*target),
            *_least_squares(*draft),
            estimates.latency.host_seconds,
        ]
        return LinearLatency(*coefficients)

    def target_seconds(self, context_tokens: float, fed_tokens: np.ndarray) -> np.ndarray:
        """Time of the target pass, float, of the shape of fed_tokens."""
        return (
            self.constant
            + self.per_context_token * context_tokens
            + self.per_fed_token * fed_tokens
        )

    def draft_seconds(self, context_tokens: float, num_rows: int, depths: np.ndarray) -> np.ndarray:
        """Time of depths draft passes over num_rows rows that hold context_tokens tokens
        together."""
        one_pass = (
            self.draft_per_pass
            + self.draft_per_row * num_rows
            + self.draft_per_context_token * context_tokens
        )
        return np.where((depths > 0) & (num_rows > 0), self.draft_constant + depths * one_pass, 0.0)


def _profile_target(estimates: Estimates) -> tuple[np.ndarray, np.ndarray]:
    """Design [M, 3] and seconds [M]."""
    lengths = np.arange(estimates.max_draft_tokens + 1)
    design, seconds = [], []
    for context in PROFILE_CONTEXT_TOKENS:
        for num_rows in PROFILE_BATCH_SIZES:
            drafts = num_rows * lengths
            design += [
                (1.0, num_rows * context, num_rows + num_drafts) for num_drafts in drafts.tolist()
            ]
            seconds.append(estimates.latency.target_seconds(even_view(num_rows, context), drafts))
    return np.array(design), np.concatenate(seconds)


def _profile_draft(estimates: Estimates) -> tuple[np.ndarray, np.ndarray]:
    """Design [M, 4] and seconds [M]; of the first draft model, all zero without one."""
    if not estimates.models:
        return np.ones((1, 4)), np.zeros(1)
    depths = np.arange(1, estimates.max_draft_tokens + 1)
    design, seconds = [], []
    for context in PROFILE_CONTEXT_TOKENS:
        for num_rows in PROFILE_BATCH_SIZES:
            view = even_view(num_rows, context, len(estimates.drafters))
            all_rows = np.full(num_rows, estimates.models[0])
            design += [(1.0, d, d * num_rows, d * num_rows * context) for d in depths.tolist()]
            seconds.append(
                estimates.latency.draft_seconds(view, all_rows, depths[-1])[estimates.models[0], 1:]
            )
    return np.array(design), np.concatenate(seconds)


def _least_squares(design: np.ndarray, seconds: np.ndarray) -> list[float]:
    scale = design.max(axis=0)
    return (solve_nnls(design / scale, seconds) / scale).tolist()
