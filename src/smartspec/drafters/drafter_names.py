"""Drafters without a model by the names people write; a class of one's own is module:Class. Any
other name is that of a model or of a trained head."""

from smartspec.control import DrafterSpec
from smartspec.core.lab_tables import WHERE
from smartspec.core.own_class import is_own_class, load_class, make_own
from smartspec.drafters.answer_memory import AnswerMemory
from smartspec.drafters.datastore import Datastore
from smartspec.drafters.datastore_drafter import DatastoreDrafter
from smartspec.drafters.model_free import ModelFreeDrafter
from smartspec.drafters.prediction import PredictionDrafter
from smartspec.drafters.prompt_lookup import PromptLookupDrafter
from smartspec.drafters.recycling import RecyclingDrafter

MODEL_FREE_DRAFTERS: dict[str, type[ModelFreeDrafter]] = {
    "prompt-lookup": PromptLookupDrafter,
    "recycling": RecyclingDrafter,
    "datastore": DatastoreDrafter,
    "prediction": PredictionDrafter,
}
READERS = ("datastore",)  # those of them that read a datastore and finished answers
# Names of drafters that are in the repository's lab.
MOVED = {
    "ngram-tree": "lab.drafters.ngram_tree:NgramTree",
    "self": "lab.drafters.self_draft:SelfDraft",
}


def is_model_free(name: str) -> bool:
    """True if the drafter of this name drafts from text alone. ValueError where it is a class that
    cannot be had, and with the new name of a drafter that is in the lab."""
    kind, colon, number = name.partition(":")
    if kind in MOVED:
        raise ValueError(
            f"drafter {name!r} is called {MOVED[kind]}{colon}{number} and is in {WHERE}"
        )
    return name in MODEL_FREE_DRAFTERS or (
        is_own_class(name) and issubclass(own_drafter(name), ModelFreeDrafter)
    )


def reads_texts(name: str) -> bool:
    """True if the drafter of this name reads a datastore and finished answers."""
    return name in READERS or (
        is_own_class(name) and bool(getattr(own_drafter(name), "reads_texts", False))
    )


def model_free_drafter(
    name: str,
    max_draft_tokens: int,
    datastore: Datastore | None = None,
    memory: AnswerMemory | None = None,
) -> ModelFreeDrafter:
    """A new drafter of a name that is_model_free. datastore, memory: for those that read texts;
    without a memory each has its own. ValueError where a class of one's own cannot be made."""
    texts = {"datastore": datastore, "memory": memory} if reads_texts(name) else {}
    if name in MODEL_FREE_DRAFTERS:
        return MODEL_FREE_DRAFTERS[name](max_draft_tokens=max_draft_tokens, **texts)
    return check_own(
        name,
        make_own(name, "drafter", own_drafter(name), max_draft_tokens=max_draft_tokens, **texts),
    )


def own_drafter(name: str) -> type:
    """The class that a name module:Class means. ValueError where there is none, or it is no
    drafter."""
    return load_class(name, "drafter", _missing)


def check_own(name: str, drafter):
    """The drafter, made. ValueError where it does not say what it is, or lacks what follows from
    that."""
    spec = getattr(drafter, "spec", None)
    if not isinstance(spec, DrafterSpec):
        raise ValueError(
            f"drafter {name!r}: its spec is {spec!r}, it must be a smartspec.control.DrafterSpec"
        )
    needed = ["profile_pass", "profile_key"] * spec.has_passes + ["draft_trees"] * spec.makes_trees
    if lacking := [each for each in needed if not hasattr(drafter, each)]:
        raise ValueError(
            f"drafter {name!r} lacks {', '.join(lacking)}, which its spec promises: {spec}"
        )
    return drafter


def _missing(found: type) -> list[str]:
    """The members that a class lacks to be a drafter; its spec may come with the instance."""
    if issubclass(found, ModelFreeDrafter):
        return ["propose"] if found.propose is ModelFreeDrafter.propose else []
    return [
        name
        for name in ("begin_step", "view", "draft", "observe")
        if not callable(getattr(found, name, None))
    ]
