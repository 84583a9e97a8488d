"""Drafters by name. A new kind is a file of its own and a line in DRAFTERS; a drafter without
a model is a line in drafters/drafter_names.py, a kind of trained head one in
drafting/head/kinds.py."""

from collections.abc import Callable

from smartspec.core.drafter import Drafter
from smartspec.core.own_class import is_own_class, make_own
from smartspec.drafters.drafter_names import (
    check_own,
    is_model_free,
    model_free_drafter,
    own_drafter,
)
from smartspec.engine.drafting.head.kinds import is_head, prepare_head
from smartspec.engine.drafting.model.drafter import DraftModel
from smartspec.engine.drafting.shipped.head import head_folder
from smartspec.engine.drafting.source import DrafterSource, PreparedDrafter
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner


def kind_of_drafter(name: str, model: str) -> str:
    """Key in DRAFTERS of the drafter of that name beside that model. Raises ValueError on a class
    that cannot be had, or where no head comes with the model."""
    if is_model_free(name):
        return "model-free"
    if is_own_class(name):
        return "module:Class"
    return "head" if is_head(str(head_folder(name, model))) else "model"


def may_draw(name: str, model: str) -> bool:
    """True where that drafter may draw its tokens, so that the rule of verification for drawn
    tokens decides (see engine.sampling.verification). Those of a model-free drafter and of a head
    are always point masses."""
    return kind_of_drafter(name, model) not in ("model-free", "head")


def prepare_drafter(source: DrafterSource) -> PreparedDrafter:
    """Read what a drafter needs. Raises ValueError or OSError naming what is wrong with it."""
    return DRAFTERS[kind_of_drafter(source.name, source.model)](source)


def prepare_model_free(source: DrafterSource) -> PreparedDrafter:
    """A drafter that needs nothing of the target."""
    texts = {"datastore": source.datastore, "memory": source.memory}
    return PreparedDrafter(
        lambda target: model_free_drafter(source.name, source.max_draft_tokens, **texts)
    )


def prepare_own(source: DrafterSource) -> PreparedDrafter:
    """A class of a user's own, which is made with the target's runner, num_slots and
    max_draft_tokens; its taps, where it has some, are layers of the target."""
    found = own_drafter(source.name)

    def make(target: ModelRunner) -> Drafter:
        options = {"num_slots": source.num_slots, "max_draft_tokens": source.max_draft_tokens}
        return check_own(source.name, make_own(source.name, "drafter", found, target, **options))

    return PreparedDrafter(make, tuple(getattr(found, "taps", ())))


def prepare_trained_head(source: DrafterSource) -> PreparedDrafter:
    """A head in a folder, or the one that comes with the model."""
    return prepare_head(head_folder(source.name, source.model), source)


def prepare_draft_model(source: DrafterSource) -> PreparedDrafter:
    """Another model of the same vocabulary. ValueError where it is of another one."""
    draft = source.target if source.name == source.model else source.load_model(source.name)
    check_same_tokens(
        source.target, draft, "use a draft model of the same family, or --drafter prompt-lookup"
    )

    def make(target: ModelRunner) -> Drafter:
        max_len = min(source.max_len, draft.max_model_len)
        runner = ModelRunner(draft, num_slots=source.num_slots, max_len=max_len)
        return DraftModel(
            runner, source.num_slots, source.name, vocab_size=source.target.vocab_size
        )

    return PreparedDrafter(make)


DRAFTERS: dict[str, Callable[[DrafterSource], PreparedDrafter]] = {
    "model-free": prepare_model_free,
    "head": prepare_trained_head,
    "model": prepare_draft_model,
    "module:Class": prepare_own,
}


def check_same_tokens(target: LoadedModel, other: LoadedModel, remedy: str) -> None:
    """Tokens of two models are exchanged by id, so an id that both have must mean the same text.
    Raises ValueError naming one that does not."""
    theirs = {token_id: token for token, token_id in other.tokenizer.get_vocab().items()}
    for token, token_id in target.tokenizer.get_vocab().items():
        if theirs.get(token_id, token) != token:
            raise ValueError(
                f"the vocabularies of {other.name!r} and {target.name!r} map tokens to different "
                f"ids: {token_id} is {theirs[token_id]!r} and {token!r}: {remedy}"
            )
