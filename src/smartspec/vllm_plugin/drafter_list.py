"""The drafters that draft in vLLM's scheduler, by their names, with the datastore that fits the model."""

import logging
from importlib.util import find_spec
from pathlib import Path

from smartspec.drafters.answer_memory import AnswerMemory
from smartspec.drafters.datastore import HEADER, Datastore, read_header
from smartspec.drafters.drafter_names import MODEL_FREE_DRAFTERS, READERS, is_model_free, model_free_drafter
from smartspec.drafters.tokenizer_digest import quick_digest
from smartspec.vllm_plugin.drafting import OwnDrafters
from smartspec.vllm_plugin.settings import Settings

logger = logging.getLogger("vllm.smartspec")  # below vLLM's own, whose handlers it so gets

DEFAULT = "prompt-lookup,datastore"
_MODELS = find_spec("smartspec_models")  # a package of its own, which a server may lack
SHIPPED = Path((_MODELS and _MODELS.origin) or __file__).parent / "datastores"
NOT_HERE = ("ngram-tree", "prediction")  # vLLM verifies chains, and its requests have no predicted output


def make_drafters(vllm_config, settings: Settings, max_draft_tokens: int) -> OwnDrafters:
    """Those of the settings. ValueError names a drafter that there is not, or a datastore that does not fit."""
    names = [name.strip() for name in (settings.drafter or DEFAULT).split(",")]
    for name in names:
        if name in NOT_HERE or not is_model_free(name):
            known = ", ".join(name for name in MODEL_FREE_DRAFTERS if name not in NOT_HERE)
            raise ValueError(f"setting 'drafter': {name!r} does not draft in the scheduler, use some of {known}")
    datastore = find_datastore(vllm_config.model_config, settings) if {*names} & {*READERS} else None
    memory = AnswerMemory()
    return OwnDrafters([model_free_drafter(name, max_draft_tokens, datastore, memory) for name in names])


def find_datastore(model_config, settings: Settings) -> Datastore | None:
    """The datastore of the settings; without a name one that comes with SmartSpec, if one fits. ValueError where the
    one that is named does not fit."""
    if settings.datastore == "none":
        return None
    if settings.datastore is not None:
        datastore = Datastore(Path(settings.datastore).expanduser())
        datastore.check_for(_tokenizer_digest(model_config), model_config.get_vocab_size(), str(model_config.model))
        return datastore
    vocab_size = model_config.get_vocab_size()
    headers = {folder.parent: read_header(folder.parent) for folder in SHIPPED.glob(f"*/{HEADER}")}
    likely = {folder: header for folder, header in headers.items() if header.vocab_size == vocab_size}
    digest = _tokenizer_digest(model_config) if likely else ""
    return next((Datastore(folder) for folder, header in likely.items() if header.tokenizer == digest), None)


def _tokenizer_digest(model_config) -> str:
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer = cached_tokenizer_from_config(model_config)
    return "" if tokenizer is None else quick_digest(tokenizer)
