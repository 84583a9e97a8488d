"""Speculation on reasoning steps (docs/reasoning.md), with `smartspec serve --speculator MODEL`."""

from lab.reasoning.routes import reasoning_routes

ROUTES = {"reasoning": reasoning_routes}
