"""Drafting and verification at once, as in PEARL (Liu et al. 2024, arXiv 2408.11850).

The draft model runs on a device of its own, beside the target. So the draft tokens of a step are
not yet there when the target's pass of that step begins. It verifies what is there: the tail, which
are the tokens that earlier steps have drafted and no pass has verified. It is fed the newest token
and the tail, so its last distribution verifies the first token of the new draft, too:

    no tail (pre-verify)      one test: the first new draft token
    a tail (post-verify)      a test for each of its tokens, and one for the first new draft token

If all are accepted, the rest of the new draft is the next tail, and no token of the target's own is
emitted: the draft already goes on. After a rejection the row emits the target's token, and has no
tail.
"""

from dataclasses import replace

import numpy as np

from smartspec.control.records import DrafterView
from smartspec.core.batch import Batch, Draft, Verification
from smartspec.sim.executor import EOS, SimExecutor


class ParallelExecutor(SimExecutor):
    """A SimExecutor whose draft model drafts while the target verifies. Its time has is_parallel
    set.

    A plan's length is that of the new draft, and the most that is verified. A row without a draft
    drops its tail. longest: of a draft. PEARL's is the ratio of speeds, so that a draft takes as
    long as the pass beside it.
    """

    def __init__(self, *positional, longest: int, **named):
        super().__init__(*positional, **named)
        self._longest = longest
        self._tails: dict[int, int] = {}  # tokens of the tail, by request id

    def release(self, request_id: int) -> None:
        self._tails.pop(request_id, None)
        super().release(request_id)

    def draft(self, batch: Batch, plan) -> tuple[Draft, ...]:
        self._tail = np.array(
            [self._tails.get(r.request_id, 0) for r in batch.decoding], dtype=np.int64
        )
        return super().draft(batch, plan)

    def _offer(self, batch: Batch) -> DrafterView:
        offered = super()._offer(batch)
        return replace(offered, lengths=np.minimum(offered.lengths, self._longest))

    def _decode(
        self, drafts: tuple[Draft, ...]
    ) -> tuple[list[Verification], np.ndarray, np.ndarray]:
        verified = np.minimum(self._tail + 1, [len(draft) for draft in drafts])
        accepted = np.minimum(self._num_right, verified)
        is_whole = (accepted == verified) & (verified > 0)
        emitted = accepted + ~is_whole
        rest = np.where(is_whole, self._tail + self._drafted - verified, 0)
        rest = np.minimum(rest, self.acceptance.max_draft_tokens - 1)
        self._tails.update(zip(self._view.request_ids.tolist(), rest.tolist(), strict=True))
        rows = self._drafted > 0  # their draft model has seen all but the newest token
        self._num_seen[self._slots[rows]] = (self._view.context_tokens + emitted)[rows]
        counts = zip(emitted.tolist(), accepted.tolist(), self._num_left.tolist(), strict=True)
        return [_answer(*of_row) for of_row in counts], verified, np.maximum(verified - 1, 0)


def _answer(num_emitted: int, num_accepted: int, num_left: int) -> Verification:
    """So many tokens, of which that of the answer's end is EOS."""
    tokens = [1] * num_emitted
    if num_left <= num_emitted:
        tokens[num_left - 1] = EOS
    return Verification(tuple(tokens), num_accepted)
