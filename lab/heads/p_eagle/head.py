"""P-EAGLE: an EAGLE-3 head that drafts all tokens in one pass (parallel EAGLE, `peagle` in the
`speculators` format).

Its entry at the text's last position predicts the next token as in EAGLE-3. After it stand entries
that know neither a token nor features: a mask token's embedding and a learned stand-in for the
features. The d-th of them predicts the token d places further on, whatever those between will be.
"""

import torch
from torch import nn

from smartspec.engine.drafting.head.eagle3 import Eagle3Head, HeadConfig


class PEagleHead(Eagle3Head):
    """The parameters of an EAGLE-3 head and mask_hidden, [1, 1, feature_size], what stands for
    features that are not known. num_depths: tokens of a draft that it was trained for."""

    def __init__(self, config: HeadConfig, mask_token_id: int, num_depths: int):
        super().__init__(config)
        self.mask_token_id, self.num_depths = mask_token_id, num_depths
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, config.feature_size))
