"""SmartSpec: speculative decoding whose length is chosen, per request and step, by predicted goodput."""

__version__ = "0.1.0"
