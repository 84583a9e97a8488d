"""What a drafter is made from: first its checkpoint is read, then the target runs and what drafts is made."""

from collections.abc import Callable
from dataclasses import dataclass

from smartspec.core.drafter import Drafter
from smartspec.drafters.answer_memory import AnswerMemory
from smartspec.drafters.datastore import Datastore
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner


@dataclass(frozen=True)
class DrafterSource:
    """name: as in --drafter. model, target: the name of the model that is served, and the model. load_model: another
    one by its name, with the same dtype, device and quantization. is_rounded: whether heads are rounded to blocks,
    where our kernel runs them. datastore, memory: what drafters without a model may read. foresees: whether no drafter
    of the engine draws its tokens, see HeadDrafter. keeps_probs: whether chains keep the distributions of greedy
    requests, for policies that compare them with the target's."""

    name: str
    model: str
    target: LoadedModel
    load_model: Callable[[str], LoadedModel]
    num_slots: int
    max_len: int
    max_draft_tokens: int
    is_rounded: bool = True
    datastore: Datastore | None = None
    memory: AnswerMemory | None = None
    foresees: bool = False
    keeps_probs: bool = False


@dataclass(frozen=True)
class PreparedDrafter:
    """A drafter whose checkpoint has been read. make: what drafts, from the runner of the target, which keeps what the
    layers named in taps compute."""

    make: Callable[[ModelRunner], Drafter]
    taps: tuple[int, ...] = ()
