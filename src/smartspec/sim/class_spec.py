"""Acceptance of workload classes as people write it.

One class: a mean acceptance per draft token, which may change at given seconds: 0.7, or 0.8>0.4@600 (0.4 from second
600 on). Behind a slash, how much requests differ, and behind another how much the tokens of one do: concentrations of
Beta distributions, small ones for large differences (0.7/8/4; no slash, no difference). Several classes, which get
equal shares of the requests, are separated by commas: 0.9/8,0.4/8.
"""

import math

from smartspec.sim.acceptance_truth import AcceptanceClass, Constant, Course, Steps


def parse_classes(text: str) -> tuple[AcceptanceClass, ...]:
    """The classes of such a text. ValueError says which part of it is wrong."""
    return tuple(_parse_class(part.strip()) for part in text.split(","))


def _parse_class(text: str) -> AcceptanceClass:
    course, *spreads = text.split("/")
    try:
        if len(spreads) > 2:
            raise ValueError("at most two concentrations")
        request, token = [float(spread) for spread in spreads] + [math.inf] * (2 - len(spreads))
        return AcceptanceClass(_parse_course(course), request_concentration=request, token_concentration=token)
    except ValueError as error:
        raise ValueError(
            f"acceptance {text!r}: expected a mean between 0 and 1, like 0.7, 0.7/8 or 0.8>0.4@600 ({error})"
        ) from error


def _parse_course(text: str) -> Course:
    first, *changes = text.split(">")
    if not changes:
        return Constant(float(first))
    steps = [(0.0, float(first))]
    for change in changes:
        value, _, second = change.partition("@")
        steps.append((float(second), float(value)))
    return Steps(tuple(steps))
