"""The field: published policies by name. `--policy nightjar` finds them here wherever Python finds
the folder lab/."""

from collections.abc import Callable
from typing import Any

from lab.policies.adaedl import AdaEdl
from lab.policies.adaserve import AdaServe
from lab.policies.banditspec import BanditSpec
from lab.policies.batch_table import BatchTable
from lab.policies.dsde import Dsde
from lab.policies.fixed_trees import DynamicDepth, Eagle2
from lab.policies.gammatune import GammaTune
from lab.policies.hf import HuggingFace
from lab.policies.nightjar import Nightjar
from lab.policies.sequoia import Sequoia
from lab.policies.sglang_ema import SglangEma
from lab.policies.smartspec import SmartSpecPaper, SmartSpecRequest
from lab.policies.smoothed_length import SmoothedLength
from lab.policies.specdecpp import SpecDecPlusPlus
from lab.policies.sssd import Sssd
from lab.policies.turbospec import TurboSpec
from smartspec.control.policy import Policy
from smartspec.control.records import MAX_TREE_NODES
from smartspec.core.policy_names import FILE

POLICIES: dict[str, Callable[..., Policy]] = {
    "batch-table": BatchTable,
    "smartspec-paper": SmartSpecPaper,
    "smartspec-request": SmartSpecRequest,
    "turbospec": TurboSpec,
    "nightjar": Nightjar,
    "banditspec": BanditSpec,
    "sssd": Sssd,
    "hf": HuggingFace,
    "sglang-ema": SglangEma,
    "smoothed-length": SmoothedLength,
    "gammatune": GammaTune,
    "dsde": Dsde,
    "specdec++": SpecDecPlusPlus,
    "adaedl": AdaEdl,
    "adaserve": AdaServe,
    "eagle2": Eagle2,
    "ddd": DynamicDepth,
    "sequoia": Sequoia,
}
# The parameter a name may carry after a colon: type, least and largest value, and FILE where that
# may stand instead.
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "batch-table": (float, 0, 1, FILE),  # acceptance while profiling
    "smartspec-paper": (int, 1, 10_000),  # steps between decisions
    "smartspec-request": (int, 1, 10_000),
    "turbospec": (int, 1, 10_000),
    "nightjar": (int, 1, 1000),  # longest draft
    "banditspec": (int, 1, 1000),  # longest draft
    "sssd": (int, 2, 1_000_000),  # operations per byte
    "hf": (float, 0, 1),  # confidence below which a draft ends
    "gammatune": (float, 0, 1),  # the same
    "dsde": (int, 1, 1000),  # shortest draft
    "specdec++": (float, 0, 1),  # probability of a rejection above which a draft ends
    "adaedl": (float, 0, 100),  # factor of the entropy
    "adaserve": (int, 1, 1_000_000),  # tokens per target pass
    "eagle2": (int, 1, MAX_TREE_NODES),  # of a tree
    "ddd": (float, 0, 1),  # probability of the beam below which a tree ends
    "sequoia": (int, 1, MAX_TREE_NODES, FILE),  # of a tree
}
