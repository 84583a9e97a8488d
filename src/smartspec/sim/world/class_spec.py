"""Acceptance of workload classes as people write it.

One class: a mean acceptance per draft token, which may change at given seconds: 0.7, or 0.8>0.4@600
(0.4 from second 600 on). After a slash: how much requests differ. After a second slash: how much
the tokens of one request differ. Both are concentrations of Beta distributions, small for large
differences (0.7/8/4; no slash, no difference). Or the name of a published head, see HEADS. Several
classes are separated by commas and get equal shares of the requests: 0.9/8,0.4/8.
"""

import math

from smartspec.sim.world.acceptance import AcceptanceClass

# Acceptance that falls with depth, fitted to the tokens per step of the EAGLE heads of Llama-3.1-8B
# with 2 to 7 draft tokens on MT-Bench (github.com/vllm-project/vllm/issues/20780; spreads are
# assumed): 1 % off at most.
HEADS = {
    "eagle1": AcceptanceClass(0.70, decay=0.87, request_concentration=8.0, token_concentration=2.0),
    "eagle3": AcceptanceClass(0.80, decay=0.96, request_concentration=8.0, token_concentration=2.0),
}


def parse_classes(text: str) -> tuple[AcceptanceClass, ...]:
    """The classes of such a text. ValueError says which part of it is wrong."""
    return tuple(_parse_class(part.strip()) for part in text.split(","))


def _parse_class(text: str) -> AcceptanceClass:
    if text in HEADS:
        return HEADS[text]
    course, *spreads = text.split("/")
    mean, *changes = course.split(">")
    steps = [change.partition("@")[::2] for change in changes]
    try:
        if len(spreads) > 2:
            raise ValueError("at most two concentrations")
        request, token = [float(spread) for spread in spreads] + [math.inf] * (2 - len(spreads))
        return AcceptanceClass(
            float(mean),
            request_concentration=request,
            token_concentration=token,
            changes=tuple((float(second), float(value)) for value, second in steps),
        )
    except ValueError as error:
        raise ValueError(
            f"acceptance {text!r}: expected a mean between 0 and 1, like 0.7, 0.7/8 or "
            f"0.8>0.4@600, or one of {', '.join(HEADS)} ({error})"
        ) from error
