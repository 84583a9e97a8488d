"""What training needs of the target's passes, kept while it generates: a second pass would cost as
much again."""

import numpy as np
import torch

from lab.train.signals import NUM_CANDIDATES, Signals
from smartspec.core.batch import Batch, Draft, StepResult
from smartspec.core.request import Request
from smartspec.engine.attention.ragged import Segment
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.engine.runtime.executor import LiveExecutor
from smartspec.texts.shards import TokenRow


class RecordingRunner(ModelRunner):
    """Keeps the logits of its last pass beside the features."""

    logits: torch.Tensor

    def forward(self, segments: list[Segment]) -> torch.Tensor:
        self.logits = super().forward(segments)
        return self.logits


class RecordingExecutor(LiveExecutor):
    """Without drafts. Requests of one step and the next must not share prefixes: what was not
    computed for a request is not recorded for it."""

    runner: RecordingRunner

    def __init__(self, runner: RecordingRunner):
        super().__init__(runner)
        self._features: dict[int, list[np.ndarray]] = {}
        self._candidates: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}

    def verify(self, batch: Batch, drafts: tuple[Draft, ...]) -> StepResult:
        result = super().verify(batch, drafts)
        for request, features in zip(
            (*batch.decoding, *batch.prefill), self.runner.features, strict=True
        ):
            if not request.num_computed_tokens:
                self._features[request.request_id], self._candidates[request.request_id] = [], []
            self._features[request.request_id].append(kept(features))
        ending = [
            r for r, done in zip(batch.prefill, result.prefill, strict=True) if done is not None
        ]
        top_ids, top_probs = likeliest(self.runner.logits)
        for row, request in enumerate((*batch.decoding, *ending)):
            self._candidates[request.request_id].append((top_ids[row], top_probs[row]))
        return result

    def take(self, request: Request) -> Signals:
        """What was recorded of a request that ended, and forget it."""
        features = np.concatenate(self._features.pop(request.request_id))
        ids, probs = zip(*self._candidates.pop(request.request_id), strict=True)
        return Signals(features[: request.num_tokens - 1], np.stack(ids), np.stack(probs))


def kept(features: torch.Tensor) -> np.ndarray:
    """In float16, or in float32 where that cannot hold them: some models have activations beyond
    65,504. Raises ValueError where they are not finite at all."""
    halves = features.to(torch.float16)
    if halves.isfinite().all():
        return halves.cpu().numpy()
    if not features.isfinite().all():
        raise ValueError(
            "the target computes activations that are NaN or infinite: nothing can be learned from "
            "them, use another checkpoint or a model that is sound (texts that were finished "
            "before are kept)"
        )
    return features.float().cpu().numpy()


def likeliest(logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Ids int32 and probabilities float16 of the likeliest tokens, [N, NUM_CANDIDATES] of logits
    [N, V]."""
    values, ids = logits.topk(min(NUM_CANDIDATES, logits.shape[-1]), dim=-1)
    probs = torch.exp(values.float() - torch.logsumexp(logits.float(), dim=-1, keepdim=True))
    return ids.to(torch.int32).cpu().numpy(), probs.to(torch.float16).cpu().numpy()


def signals_by(runner: ModelRunner, row: TokenRow) -> Signals:
    """The same for a finished row, in a pass of its own over it in slot 0."""
    logits = runner.forward([Segment(0, 0, row.token_ids[:-1], row.num_answer_tokens)])
    top_ids, top_probs = likeliest(logits)
    return Signals(kept(runner.features[0]), top_ids, top_probs)
