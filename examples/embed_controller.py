"""A host that embeds the controller: a seeded random world in place of an engine. python
examples/embed_controller.py

Eight requests, of which each drafter's tokens are right with a probability of its own: n-gram
lookup costs nothing and finds a draft half the time, a draft model costs a pass per token. Who
drafts how much is the controller's business.
"""

import numpy as np

from smartspec.control import (
    BatchView,
    Controller,
    CostCurve,
    Drafted,
    DrafterSpec,
    DrafterView,
    LatencyModel,
)

from smartspec.control import Outcome, StepSeconds  # isort: skip

K, ROWS = 6, 8
# chance that a draft token is right, by drafter and row
RATES = np.array([[0.6], [0.8]]) * np.linspace(0.7, 1.2, ROWS)


def main(num_steps: int = 300, seed: int = 0, policy: str = "goodput") -> float:
    """Tokens per second of that many steps."""
    random, rows = np.random.default_rng(seed), np.arange(ROWS)
    drafters = (DrafterSpec("n-gram"), DrafterSpec("small model", has_passes=True))
    true_latency = LatencyModel(
        CostCurve.linear(0.02, 0.0005), (None, CostCurve.linear(0.001, 0.0001))
    )
    controller = Controller(
        policy, K, LatencyModel.from_dict(true_latency.to_dict()), drafters=drafters, strict=True
    )
    context, now, num_emitted = np.full(ROWS, 100), 0.0, 0
    for _ in range(num_steps):
        offered = DrafterView(K * random.integers(0, 2, ROWS)), DrafterView(np.full(ROWS, K))
        view = BatchView(rows, context.copy(), np.full(ROWS, K), offered, now=now)
        plan = controller.plan(view)
        keep = controller.cut(plan, Drafted(plan.lengths))
        is_right = random.random((K, ROWS)) < RATES[plan.drafter, rows]
        accepted = np.minimum(is_right.cumprod(axis=0).sum(axis=0), keep)
        predicted = true_latency.predict(view, plan, keep)  # this world is as it was profiled
        seconds = StepSeconds(predicted.draft, predicted.target, host=0.001)
        outcome = Outcome.of(view, plan, Drafted(plan.lengths), keep, accepted, seconds)
        controller.learn(plan, outcome)
        context, now, num_emitted = (
            context + accepted + 1,
            now + seconds.total,
            num_emitted + outcome.num_emitted,
        )
    return num_emitted / now


if __name__ == "__main__":
    print(
        ", ".join(
            f"{policy}: {main(policy=policy):.0f} tokens per second"
            for policy in ("off", "fixed:3", "goodput")
        )
    )
