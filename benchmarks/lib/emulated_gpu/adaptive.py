"""vLLM's adaptive verification, as its model runner has it (vLLM 0.32: v1/worker/gpu/spec_decode).

Drafts always have the full length. The runner scores every draft token with its survival, the
product of the drafter's confidences up to it, and verifies the best ones of all requests. Their
number is that with the most expected tokens per second of step time. Step times are profiled once,
at one length of context.
"""

from collections.abc import Sequence

import numpy as np

from lib.emulated_gpu.step_time import GPUTime, StepSize

PROFILE_CONTEXT = 8192  # tokens of each request: VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN


class AdaptiveVerification:
    """time: of the GPU; profiled here, once. As in vLLM, a profiled pass of n tokens has n
    requests, max_requests at most. The number of tokens is chosen with the confidences of the step
    before, as those of this one are not on the host yet; which tokens, with those of this one."""

    def __init__(self, time: GPUTime, max_requests: int, max_tokens: int, max_draft_tokens: int):
        self._longest = max_draft_tokens
        fed = np.arange(1, max_tokens + 1)
        rows = np.minimum(fed, max_requests)
        seconds = time.target.seconds(
            fed, rows * PROFILE_CONTEXT, rows, fed * float(PROFILE_CONTEXT), fed
        )
        self._verify = np.concatenate([[0.0], np.maximum.accumulate(seconds)])
        sizes = [
            StepSize(n, n, n * PROFILE_CONTEXT, n * PROFILE_CONTEXT, n, True, max_draft_tokens)
            for n in range(1, max_requests + 1)
        ]
        self._draft = np.array([0.0, *map(time.draft_seconds, sizes)])
        self._seen: dict[str, np.ndarray] = {}

    def take_costs(
        self, draft: Sequence[tuple[int, float]], verify: Sequence[tuple[int, float]]
    ) -> None:
        """Step times in milliseconds in place of the profiled ones, as set_cost_curves takes them:
        those of the next larger size that is told."""
        self._draft, self._verify = (
            _table(draft, len(self._draft)),
            _table(verify, len(self._verify)),
        )

    def cut(
        self,
        names: list[str],
        others: np.ndarray,
        drafted: np.ndarray,
        num_sampling: int,
        confidence: np.ndarray,
    ) -> np.ndarray:
        """Draft tokens to verify, int [R]. others: tokens fed beside drafts, int [R]. confidence:
        float [R, K]."""
        fresh = np.ones(self._longest)
        stale = np.array([self._seen.get(name, fresh) for name in names])
        self._seen = dict(zip(names, confidence, strict=True))
        exists = np.arange(self._longest) < drafted[:, None]
        scores = np.sort(np.cumprod(stale, axis=1)[exists])[::-1]
        expected = num_sampling + np.concatenate([[0.0], np.cumsum(scores)])
        fed = int(others.sum()) + np.arange(len(expected))
        budget = int(np.argmax(expected / (self._draft[len(names)] + self._verify[fed])))
        survival = np.where(exists, np.cumprod(confidence, axis=1), -1.0).ravel()
        admitted = np.zeros(survival.shape, dtype=bool)
        admitted[np.argsort(-survival, kind="stable")[:budget]] = True
        return admitted.reshape(exists.shape).sum(axis=1)


def _table(curve: Sequence[tuple[int, float]], length: int) -> np.ndarray:
    """Seconds of every size below length: float [length]."""
    sizes, milliseconds = np.array(curve, dtype=float).T
    at = np.searchsorted(sizes, np.arange(length), side="left")
    return np.maximum.accumulate(milliseconds)[np.minimum(at, len(sizes) - 1)] / 1e3
