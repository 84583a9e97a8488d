"""What several of the published policies need: the straggler cut, and trees of one size."""

from dataclasses import replace

import numpy as np

from smartspec.control.estimates import Estimates
from smartspec.control.planning import model_free_first, plan_of_lengths
from smartspec.control.records import BatchView, Plan


def cut_stragglers(lengths: np.ndarray, is_counted: np.ndarray) -> np.ndarray:
    """Lengths (int [R]) of the counted rows (bool [R]), none above their mean rounded up; other
    rows as they are.

    Draft models run in lock step, so one long draft keeps the whole batch waiting (arXiv
    2509.01083, batch cap).
    """
    if not is_counted.any():
        return lengths
    ceiling = int(np.ceil(lengths[is_counted].mean()))
    return np.where(is_counted, np.minimum(lengths, ceiling), lengths)


def usual_model(view: BatchView, estimates: Estimates) -> np.ndarray:
    """Rows whose usual drafter drafts in passes of a model: bool [R]."""
    return estimates.has_passes(model_free_first(view, estimates))


def trees_of(
    view: BatchView, estimates: Estimates, num_nodes: int, num_passes: int, width: int
) -> Plan:
    """Trees of so many nodes, made in so many passes of that width, from the usual drafter of each
    row. Draft models that make no trees draft a chain of as many passes; drafts that exist are used
    up to as many nodes."""
    drafter = model_free_first(view, estimates)
    makes_chains = np.array(
        [each.has_passes and not each.makes_trees for each in estimates.drafters] + [False]
    )
    lengths = np.where(makes_chains[drafter], min(num_nodes, num_passes), num_nodes)
    plan = plan_of_lengths(view, estimates, lengths)
    if width == 1 or not any(each.makes_trees for each in estimates.drafters):
        return plan
    return replace(plan, depths=np.full(view.num_rows, num_passes), width=width)
