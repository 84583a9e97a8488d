"""What of SGLang the plugin meets: a policy with the signatures of 0.5.23, and a scheduler loop
that calls it."""

from collections.abc import Callable


class OwnPolicy:
    """Stands in for AdaptiveSpeculativeParams. slots: candidate steps from each batch size on. It
    always chooses the longest."""

    def __init__(self, slots: dict[int, list[int]]):
        self.slots, self.verified = slots, []
        self._cuda_graph_bs: list[int] | None = None

    @property
    def candidate_steps(self) -> list[int]:
        return sorted({step for steps in self.slots.values() for step in steps})

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        self._cuda_graph_bs = cuda_graph_bs

    def get_steps_for_batch(self, batch_size: int) -> int:
        return max(self._slot(batch_size))

    def on_verify_complete(
        self, num_correct_drafts_per_req: list[int], batch_size: int
    ) -> int | None:
        self.verified.append((num_correct_drafts_per_req, batch_size))
        return max(self._slot(batch_size))

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        if self._cuda_graph_bs is None:
            return None
        return [size for size in self._cuda_graph_bs if step in self._slot(size)]

    def _slot(self, batch_size: int) -> list[int]:
        return self.slots[max(start for start in self.slots if start <= max(batch_size, 1))]


class NewerPolicy(OwnPolicy):
    """With the signatures of SGLang's pull request 28045, whose controller tells the steps of what
    was verified, and which steps are active."""

    def __init__(self, slots: dict[int, list[int]]):
        super().__init__(slots)
        self.activated, self.told = [], []

    def on_verify_complete(
        self, num_correct_drafts_per_req: list[int], batch_size: int, num_steps: int | None = None
    ) -> int | None:
        self.told.append(num_steps)
        return super().on_verify_complete(num_correct_drafts_per_req, batch_size)

    def on_state_activated(self, steps: int) -> None:
        self.activated.append(steps)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def drive(
    policy,
    clock: Clock,
    batch_size: int,
    num_steps: int,
    seconds: Callable[[int, int], float],
    accepted: Callable[[int], list[int]],
) -> list[int]:
    """SGLang's overlapped loop with one batch: the steps of each launch. seconds(batch size, steps)
    of the GPU; accepted(steps), by request."""
    chosen, free, last = [], clock.now, None

    def finish(end: float, steps: int) -> None:
        clock.now = max(clock.now, end)
        policy.on_verify_complete(accepted(steps), batch_size)

    for _ in range(num_steps):
        steps = policy.get_steps_for_batch(batch_size)
        chosen.append(steps)
        free = max(free, clock.now) + seconds(batch_size, steps)
        if last is not None:
            finish(*last)
        last = free, steps
    finish(*last)
    return chosen
