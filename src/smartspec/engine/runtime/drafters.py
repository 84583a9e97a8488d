"""The drafters without a model, by the names people write. Any other name is that of a draft model."""

from collections.abc import Callable

from smartspec.core.drafter import Drafter
from smartspec.drafters.ngram_tree import NgramTreeDrafter
from smartspec.drafters.prompt_lookup import PromptLookupDrafter
from smartspec.drafters.recycling import RecyclingDrafter

MODEL_FREE_DRAFTERS: dict[str, Callable[..., Drafter]] = {  # called with max_draft_tokens
    "prompt-lookup": PromptLookupDrafter,
    "recycling": RecyclingDrafter,
    "ngram-tree": NgramTreeDrafter,
}
