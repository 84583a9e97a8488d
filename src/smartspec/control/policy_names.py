"""Policies by name, as people write them: goodput, off, fixed:4, batch-table, batch-table:0.6, batch-table:FILE,
module:Class."""

from collections.abc import Callable

from smartspec.control.baselines.adaedl import AdaEdl
from smartspec.control.baselines.adaserve import AdaServe
from smartspec.control.baselines.banditspec import BanditSpec
from smartspec.control.baselines.batch_table import BatchTable
from smartspec.control.baselines.dsde import Dsde
from smartspec.control.baselines.fixed_trees import DynamicDepth, Eagle2
from smartspec.control.baselines.gammatune import GammaTune
from smartspec.control.baselines.hf import HuggingFace
from smartspec.control.baselines.nightjar import Nightjar
from smartspec.control.baselines.sequoia import Sequoia
from smartspec.control.baselines.sglang_ema import SglangEma
from smartspec.control.baselines.smartspec import SmartSpecPaper, SmartSpecRequest
from smartspec.control.baselines.smoothed_length import SmoothedLength
from smartspec.control.baselines.specdecpp import SpecDecPlusPlus
from smartspec.control.baselines.sssd import Sssd
from smartspec.control.baselines.static import Fixed, Off
from smartspec.control.baselines.turbospec import TurboSpec
from smartspec.control.goodput.policy import Goodput
from smartspec.control.own_class import is_own_class, load_class, make_own
from smartspec.control.policy import Policy
from smartspec.control.records import MAX_TREE_NODES

POLICIES: dict[str, Callable[..., Policy]] = {
    "goodput": Goodput,
    "off": Off,
    "fair": lambda fairness=1.0: Goodput(fairness=fairness),
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
# The parameter a name may carry after a colon: type, least and largest value.
PARAMETERS = {
    "fair": (float, 0, 5),  # 0: the arithmetic mean, 1: the geometric, 2: the harmonic, ...
    "batch-table": (float, 0, 1),  # acceptance while profiling
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
    "sequoia": (int, 1, MAX_TREE_NODES),  # of a tree
}
TOLD = ("perfect-estimates", "perfect-outcomes")  # the ground truth, which the simulator alone has
FROM_FILES = ("batch-table", "sequoia")  # what may stand instead: the path of a profiling run
_OTHERS = [f"{name}[:number]" if name in PARAMETERS else name for name in list(POLICIES)[3:]]
ALLOWED = (
    "goodput, off, fixed:K (K a number of draft tokens, for example fixed:4), uniform:K,K,... (goodput with one of "
    f"these lengths for all requests of a step), fair[:number] (goodput by one mean everywhere), {', '.join(_OTHERS)}, "
    "or module:Class[:number], a policy of your own"
)


def all_policies(max_draft_tokens: int) -> list[str]:
    """Every policy with its defaults, and three fixed lengths, as far as drafts may be so long."""
    fixed = [f"fixed:{length}" for length in (1, 3, 5) if length <= max_draft_tokens]
    return ["off", *fixed, *(name for name in POLICIES if name != "off")]


def parse_policy(name: str, max_draft_tokens: int | None = None) -> Policy:
    """A new policy of that name. ValueError if there is none, if its number is out of range, or if a user's own class
    cannot be loaded (see own_class)."""
    kind, colon, text = name.partition(":")
    if kind in TOLD:
        raise ValueError(f"policy {kind!r} must be told the true acceptance and time: it exists only in the simulator")
    if kind == "fixed" and text.isascii() and text.isdigit():
        return _fixed(name, int(text), max_draft_tokens)
    if kind == "uniform":
        return Goodput(_lengths(name, text, max_draft_tokens))
    if is_own_class(name) and kind not in (*POLICIES, "fixed"):
        return make_own(name, "policy", load_class(name, "policy", _missing))
    if kind not in POLICIES or (colon and kind not in PARAMETERS):
        raise ValueError(f"unknown policy {name!r}: use one of {ALLOWED}")
    return POLICIES[kind](_parameter(name, kind, text)) if colon else POLICIES[kind]()


def _missing(found: type) -> list[str]:
    """What a class lacks to be a policy."""
    lacking = [name for name in ("plan", "cut", "learn", "end", "state") if not callable(getattr(found, name, None))]
    if issubclass(found, Policy):
        return ["plan"] if found.plan is Policy.plan else []
    return [*lacking, "the base class smartspec.control.Policy, which has all of these but plan"]


def _fixed(name: str, length: int, max_draft_tokens: int | None) -> Fixed:
    _check_length(name, length, max_draft_tokens)
    return Fixed(length)


def _lengths(name: str, text: str, max_draft_tokens: int | None) -> tuple[int, ...]:
    """The allowed lengths of uniform:1,3,5."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"policy {name!r}: after the colon name lengths to choose from, for example uniform:1,3,5")
    for part in parts:
        _check_length(name, int(part), max_draft_tokens)
    return tuple(sorted({int(part) for part in parts}))


def _check_length(name: str, length: int, max_draft_tokens: int | None) -> None:
    if max_draft_tokens is not None and length > max_draft_tokens:
        raise ValueError(f"policy {name!r} needs more than the {max_draft_tokens} draft tokens allowed per request")


def _parameter(name: str, kind: str, text: str) -> float | str:
    """The number in a policy's name, or the path of a profiling run; ValueError says what may stand there."""
    if kind in FROM_FILES and text.endswith(".json"):
        return text
    number, least, largest = PARAMETERS[kind]
    try:
        value = number(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= largest:
        what = "whole number" if number is int else "number"
        or_file = ", the .json file of a profiling run" if kind in FROM_FILES else ""
        raise ValueError(
            f"policy {name!r}: after the colon use a {what} from {least} to {largest}{or_file}, or leave it out"
        )
    return value
