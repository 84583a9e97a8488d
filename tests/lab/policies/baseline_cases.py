"""Steps for testing policies without an engine: views, estimates, and drafts that are accepted by
the roll of dice."""

import factories
import numpy as np
from drafter_cases import LOOKUP, estimates_of, found, lagging
from factories import learn, make_outcome

from smartspec.control import BatchView, CostCurve, Drafted, DrafterSpec, LatencyModel
from smartspec.control.estimates import Estimates
from smartspec.control.fixed import Fixed
from smartspec.control.planning import no_drafts
from smartspec.core.policy_names import POLICIES as OURS
from smartspec.core.policy_names import published_policies
from smartspec.sim.perfect_estimates import PerfectEstimates

K = 8
POLICIES = OURS | published_policies()
ALL_POLICIES = [*POLICIES, "fixed", "perfect-estimates"]
HEAD = DrafterSpec("head", has_passes=True, makes_trees=True)


def new_policy(name, has_model=True):
    """A policy of any name; perfect-estimates is told that 0.6 of all tokens are accepted."""
    if name == "perfect-estimates":
        return PerfectEstimates(
            lambda view: make_estimates(view.num_rows, acceptance=0.6, has_model=has_model)
        )
    return Fixed(5) if name == "fixed" else POLICIES[name]()


def make_view(rows, *, found_lengths=0, has_model=True, **more) -> BatchView:
    """A lookup that finds nothing if not said otherwise and, if there is one, a draft model without
    lag."""
    lag = 0 if has_model else None
    return factories.make_view(
        rows, found_lengths=found_lengths, lag=lag, context_tokens=512, **more
    )


def make_latency(per_token=1e-4, draft_pass=0.001):
    return LatencyModel(
        CostCurve.linear(0.02, per_token), (None, CostCurve.linear(draft_pass, 1e-6))
    )


def make_estimates(num_rows, acceptance=0.7, latency=None, *, max_draft_tokens=K, has_model=True):
    survival = np.cumprod(np.full((num_rows, max_draft_tokens), acceptance), axis=1)
    return estimates_of(latency or make_latency(), survival, survival if has_model else None)


def draft(plan, confidence, entropy):
    """Lengths that come out when the plan's stop rule is called after every pass: int [R]."""
    lengths = np.where(plan.drafter == 1, 0, plan.lengths)
    active = plan.drafter == 1
    for depth in range(int(plan.lengths.max(initial=0))):
        rows = np.flatnonzero(active & (plan.lengths > depth))
        lengths[rows] += 1
        if plan.stop is not None and len(rows):
            stops = plan.stop(depth, rows, confidence[rows, depth], entropy[rows, depth])
            active[rows[stops]] = False
    return lengths


def planned(policy, view, **estimates):
    """A policy's plan for a step with such estimates."""
    return policy.plan(view, make_estimates(view.num_rows, **estimates))


def planned_trees(
    policy, found_lengths, drafter=HEAD, *, longest=63, survival=0.7, estimates=None, **more
):
    """A policy's plan with a lookup that found so much and with a drafter that makes trees.
    estimates: more of them, by name."""
    num_rows = len(found_lengths)
    views = found(found_lengths), lagging(num_rows)
    view = factories.make_view(num_rows, drafters=views, row_caps=longest, **more)
    chances = np.broadcast_to(np.cumprod(np.full(longest, survival)), (2, num_rows, longest))
    given = {"latency": make_latency()} | (estimates or {})
    return policy.plan(view, Estimates((LOOKUP, drafter), chances, **given))


def observe(policy, view, verified, accepted, **more):
    """Tells a policy so many tokens per row, whatever it planned."""
    learn(policy, make_outcome(view, no_drafts(view.num_rows), verified, accepted, **more))


def run_step(policy, view, acceptance, rng, **estimates):
    """One step in which every token of row i is accepted with probability acceptance[i]; returns
    plan and outcome."""
    estimates = make_estimates(view.num_rows, **estimates)
    shape = (view.num_rows, estimates.max_draft_tokens)
    confidence, entropy = rng.uniform(0.3, 1.0, shape), rng.exponential(1.0, shape)
    plan = policy.plan(view, estimates)
    lengths = draft(plan, confidence, entropy)
    is_known = (plan.drafter == 1)[:, None] & (np.arange(shape[1]) < lengths[:, None])
    drafted = Drafted(lengths, np.where(is_known, confidence, np.nan))
    verified = policy.cut(plan, drafted, lambda: estimates.survival_of(plan.drafter))
    is_accepted = rng.random(shape) < np.broadcast_to(acceptance, view.num_rows)[:, None]
    accepted = np.minimum(np.cumprod(is_accepted, axis=1).sum(axis=1), verified)
    is_verified = np.arange(shape[1]) < verified[:, None]
    divergence = np.where(is_verified, rng.exponential(0.2, shape), np.nan)
    measured = {"confidence": confidence, "extras": {"divergence": divergence}}
    outcome = make_outcome(view, plan, verified, accepted, drafted=lengths, **measured)
    learn(policy, outcome)
    return plan, outcome
