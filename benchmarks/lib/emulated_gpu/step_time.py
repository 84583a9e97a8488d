"""How long a GPU works on one step of vLLM: the target's pass, then the drafter's."""

from dataclasses import dataclass

from smartspec.sim.world.step_time import PassCost


@dataclass(frozen=True)
class StepSize:
    """fed: tokens of the target's pass. rows: requests. context: tokens whose KV is read, fed ones
    included. attended: pairs of a fed token and one that it sees. scored: tokens that get logits.
    is_captured: the step replays a full graph. draft_tokens: that are to be drafted for the next
    step."""

    fed: int
    rows: int
    context: int
    attended: float
    scored: int
    is_captured: bool
    draft_tokens: int = 0


@dataclass(frozen=True)
class GPUTime:
    """target, draft: cost of one pass; draft is None without a drafter that has passes.
    drafts_in_one_pass: a block drafter, whose passes do not grow with depth. piecewise: seconds
    that a pass outside full graphs takes longer."""

    target: PassCost
    draft: PassCost | None = None
    drafts_in_one_pass: bool = False
    piecewise: float = 0.0

    def target_seconds(self, size: StepSize) -> float:
        """Of the target's pass."""
        passed = self.target.seconds(size.fed, size.context, size.rows, size.attended, size.scored)
        return float(passed) + (0.0 if size.is_captured else self.piecewise)

    def draft_seconds(self, size: StepSize) -> float:
        """Of all passes of the drafter. The first feeds what the target was fed, and runs even
        where no draft is wanted: it keeps the drafter's KV up to date. Each further one feeds a
        token of every request."""
        if self.draft is None:
            return 0.0
        if self.drafts_in_one_pass:
            block = size.rows * size.draft_tokens
            attended = size.attended + block * size.context / max(size.rows, 1)
            return float(
                self.draft.seconds(
                    size.fed + block, size.context + block, size.rows, attended, max(block, 1)
                )
            )
        first = self.draft.seconds(size.fed, size.context, size.rows, size.attended, size.rows)
        later = self.draft.seconds(size.rows, size.context, size.rows, size.context, size.rows)
        return float(first) + max(size.draft_tokens - 1, 0) * float(later)
