"""One decision for all ranks of tensor parallelism. Each rank has a scheduler that launches the
same batches, but ranks measure different times. Two that choose different steps would wait for each
other for ever."""


class Agreed:
    """A rank's policy: that of rank 0 decides, and all ranks take its steps, in every launch.

    policy: this rank's; called on rank 0 alone. group: SGLang's GroupCoordinator of the ranks.
    """

    def __init__(self, policy, group):
        self._policy, self._group, self._decides = policy, group, group.rank_in_group == 0

    def __getattr__(self, name: str):
        return getattr(self._policy, name)

    def get_steps_for_batch(self, batch_size: int, *more, **named) -> int:
        steps = (
            self._policy.get_steps_for_batch(batch_size, *more, **named) if self._decides else None
        )
        return self._group.broadcast_object(steps, src=0)

    def on_verify_complete(
        self, num_correct_drafts_per_req: list[int], batch_size: int, *more, **named
    ) -> None:
        """Steps change in a launch alone: there all ranks are told."""
        if self._decides:
            self._policy.on_verify_complete(num_correct_drafts_per_req, batch_size, *more, **named)
