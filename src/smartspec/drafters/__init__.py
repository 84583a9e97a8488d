"""Drafters without a model: ModelFreeDrafter is what all of them share."""

from smartspec.drafters.model_free import ModelFreeDrafter

__all__ = ["ModelFreeDrafter"]
