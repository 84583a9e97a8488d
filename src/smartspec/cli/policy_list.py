"""The policies a command compares, as a person lists them."""

import re


def policy_list(text: str) -> list[str]:
    """Names separated by commas, each once, in their order.

    Numbers after a comma belong to the policy before it: "uniform:2,4,off" are two.
    """
    without_spaces = re.sub(r"\s*,\s*", ",", text.strip())
    return list(dict.fromkeys(re.split(r",(?!\d)", without_spaces)))
