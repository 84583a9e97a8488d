"""Steps as the controller sees them: a view of a batch, and the outcome of what became of its
drafts."""

import numpy as np
from drafter_cases import found, lagging

from smartspec.control import (
    BatchView,
    DecisionRecord,
    Drafted,
    DrafterView,
    Outcome,
    Plan,
    StepSeconds,
)
from smartspec.control.log.decision import decision_record
from smartspec.control.planning import no_drafts


def make_view(
    rows,
    *,
    found_lengths=None,
    lag=None,
    drafters: tuple[DrafterView, ...] | None = None,
    context_tokens=100,
    row_caps=8,
    prefill=0,
    **more,
) -> BatchView:
    """rows: how many, or their request ids; what a row has may be one value for all. prefill:
    tokens of the one request that begins beside them, if any.

    drafters: where left out, a model-free one that has found drafts of found_lengths, if given, and
    then a draft model whose KV lags by lag tokens, if given.
    """
    request_ids = np.arange(rows) if isinstance(rows, int) else np.asarray(rows, dtype=np.int64)
    num_rows = len(request_ids)

    def column(values):
        return np.broadcast_to(np.asarray(values, dtype=np.int64), num_rows).copy()

    if drafters is None:
        lookup = () if found_lengths is None else (found(column(found_lengths)),)
        drafters = (*lookup, *(() if lag is None else (lagging(num_rows, lag),)))
    if prefill:
        more |= {
            "num_prefills": 1,
            "prefill_tokens": prefill,
            "prefill_context_tokens": prefill,
        }
    return BatchView(request_ids, column(context_tokens), column(row_caps), drafters, **more)


def learn(learner, outcome: Outcome) -> None:
    """Tell a controller or a policy what came of the plan in the outcome."""
    learner.learn(outcome.plan, outcome)


def draw_chains(rng: np.random.Generator, acceptance, shape: tuple[int, int]) -> np.ndarray:
    """The right tokens of drafts of shape [R, K], whose tokens are right with these chances, given
    those before them: int [R]."""
    return np.cumprod(rng.random(shape) < acceptance, axis=1).sum(axis=1)


def play_step(
    controller,
    view: BatchView,
    chains,
    told,
    make_drafts=lambda plan: Drafted(plan.lengths),
) -> Outcome:
    """One step, as a host runs it. chains: int [R], right tokens of the drafts. told: makes the
    other fields of the outcome of the plan and the numbers of verified tokens. make_drafts: makes
    what is drafted of the plan; as planned, unless it is said."""
    plan = controller.plan(view)
    drafted = make_drafts(plan)
    verified = controller.cut(plan, drafted)
    fields = {"drafted": drafted.lengths, "confidence": drafted.confidence}
    fields |= told(plan, verified)
    outcome = make_outcome(plan.view, plan, verified, np.minimum(chains, verified), **fields)
    learn(controller, outcome)
    return outcome


def make_outcome(
    view: BatchView, plan: Plan | None = None, verified=None, accepted=None, **changes
) -> Outcome:
    """Of a step in which all that was planned was drafted, verified and accepted, unless it is said
    what else was; of a non-speculative one without a plan."""
    plan = no_drafts(view.num_rows) if plan is None else plan
    verified = plan.lengths if verified is None else np.asarray(verified)
    accepted = verified if accepted is None else np.asarray(accepted)
    columns = {
        "drafted": verified,
        "tested": np.minimum(verified, accepted + 1),
        "num_emitted": int(accepted.sum()) + view.num_rows,
        "seconds": StepSeconds(draft=0.0, target=0.02, host=0.001),
    }
    return Outcome(view=view, plan=plan, verified=verified, accepted=accepted, **columns | changes)


def make_record(outcome: Outcome, plan: Plan | None = None, view=None, **changes) -> DecisionRecord:
    """Of a step whose plan and view are those of the outcome, unless it is said what else they
    were."""
    predicted = {
        "goodput": 1.0,
        "off_goodput": 1.0,
        "predicted_seconds": 0.01,
        "survival": np.zeros((outcome.view.num_rows, 4)),
    }
    return decision_record(
        outcome.view if view is None else view,
        outcome.plan if plan is None else plan,
        outcome,
        **predicted | changes,
    )
