"""Speculation on reasoning steps (docs/reasoning.md), with `smartspec serve --speculator MODEL`."""

from lab.reasoning.routes import reasoning_routes
from lab.reasoning.speculator import load_speculator

REASONING = {"load": load_speculator, "routes": reasoning_routes}
