"""Texts as drafters are given them."""

import numpy as np


def as_text(token_ids) -> np.ndarray:
    return np.array(token_ids, dtype=np.int32)
