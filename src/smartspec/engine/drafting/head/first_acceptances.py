"""A look at the first drafts of a trained head: are any accepted at all?

A head that was trained for another target, or on other layers than it now reads, loads like any
other: its drafts are rejected, outputs stay right and nothing fails. Reported of other engines: 1 %
of drafts accepted.
"""

import logging
from collections.abc import Sequence

import numpy as np

from smartspec.core.batch import Verification

NUM_DRAFTS = 128
LEAST_SHARE = 0.03  # of drafts with a right first token; of heads for their target it is 0.2 to 0.9

logger = logging.getLogger(__name__)


class FirstAcceptances:
    """Looks at the first NUM_DRAFTS drafts of a head, and warns once where the share of those with
    an accepted token is below LEAST_SHARE. name: of the head; taps: the layers that it reads."""

    def __init__(self, name: str, taps: tuple[int, ...]):
        self._name, self._taps = name, taps
        self._num_drafts = self._num_accepted = 0

    def note(self, verified: np.ndarray, decoding: Sequence[Verification]) -> None:
        """verified: int [R], tokens of this head's draft in each row. decoding: what came of the
        rows."""
        if self._num_drafts >= NUM_DRAFTS:
            return
        for length, verification in zip(verified.tolist(), decoding, strict=True):
            if length:
                self._num_drafts += 1
                self._num_accepted += verification.num_accepted > 0
        if self._num_drafts >= NUM_DRAFTS and self._num_accepted < LEAST_SHARE * self._num_drafts:
            logger.warning(
                "head %s: the target accepted a token of %d of its first %d drafts. It was trained "
                "for another target, or on other layers than it reads now (%s): set "
                "eagle_aux_hidden_state_layer_ids in its config.json to those that it was trained "
                "on, or leave it out. Outputs are right nonetheless",
                *(self._name, self._num_accepted, self._num_drafts, list(self._taps)),
            )
