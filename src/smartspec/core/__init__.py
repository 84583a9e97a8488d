"""Requests, batches and the step loop, without tensors. What the author of a drafter needs is here;
other names are internal."""

from smartspec.core.batch import NO_DRAFT, Batch, Draft, Verification, chain
from smartspec.core.drafter import Drafter, ProfiledDrafter, TreeDrafter

__all__ = [
    "NO_DRAFT",
    "Batch",
    "Draft",
    "Drafter",
    "ProfiledDrafter",
    "TreeDrafter",
    "Verification",
    "chain",
]
