"""The two steps in which a drafter is made: its checkpoint is read; once the target runs, the
drafter is made."""

from collections.abc import Callable
from dataclasses import dataclass

from smartspec.core.drafter import Drafter
from smartspec.drafters.answer_memory import AnswerMemory
from smartspec.drafters.datastore import Datastore
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner


@dataclass(frozen=True)
class DrafterSource:
    """All that a drafter may be made from."""

    name: str  # as in --drafter
    model: str  # name of the model that is served
    target: LoadedModel  # that model
    # another by its name, with the same dtype, device and quantization
    load_model: Callable[[str], LoadedModel]
    num_slots: int
    max_len: int
    max_draft_tokens: int
    is_rounded: bool = True  # heads are rounded to blocks, where our kernel runs them
    datastore: Datastore | None = None  # read by drafters without a model
    memory: AnswerMemory | None = None  # the same
    foresees: bool = False  # no drafter of the engine draws its tokens, see HeadDrafter


@dataclass(frozen=True)
class PreparedDrafter:
    """A drafter whose checkpoint has been read."""

    make: Callable[[ModelRunner], Drafter]  # from the runner of the target
    taps: tuple[int, ...] = ()  # layers of the target that the drafter reads
