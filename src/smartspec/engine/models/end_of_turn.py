"""The tokens at which a model's answer ends.

A model's own end of text is often not what ends its turn: bases and many fine-tunes keep
<|endoftext|> as eos and write <|im_end|>. What ends it is then known by its name, and by what the
chat template writes after an assistant's answer.
"""

import logging
from collections.abc import Mapping

from torch import nn
from transformers import PreTrainedTokenizerBase

from smartspec.engine.models.chat_templates import ChatTemplate, ChatTemplateError
from smartspec.engine.models.gguf_vocabulary import named_ends

logger = logging.getLogger(__name__)

_ANSWER = "Xylophone"  # a word that no template writes or changes


def end_token_ids(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All of the model's generation config and configuration, the tokenizer's eos, special tokens
    with a name that says so, and what the chat template writes after an answer."""
    configs = model.generation_config, model.config, model.config.get_text_config()
    said = [getattr(config, "eos_token_id", None) for config in configs]
    ids = [i for value in said for i in (value if isinstance(value, list) else [value])]
    named = named_ends(_special_tokens(tokenizer))
    return frozenset(
        int(i)
        for i in [*ids, tokenizer.eos_token_id, *named, template_end(tokenizer)]
        if i is not None
    )


def template_end(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token that the chat template writes directly after an assistant's answer, where
    it writes one.

    What opens a turn is none: a template may begin the next one without being told to.
    """
    user, assistant = (
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": _ANSWER},
    )
    special = _special_tokens(tokenizer)

    template = ChatTemplate(tokenizer)

    def render(*messages: dict[str, str], **options: bool) -> str:
        return template.render(messages, **options)

    def next_special(*messages: dict[str, str]) -> str | None:
        _, found, after = render(*messages).rpartition(_ANSWER)
        return _first(special, after) if found else None

    try:
        if not tokenizer.chat_template:
            return None
        end = next_special(user, assistant)
        plain, begun = render(user), render(user, add_generation_prompt=True)
        opens = _first(special, begun.removeprefix(plain)) if begun != plain else None
        if begun == plain and end != next_special(user, assistant, user):
            return None
    except ChatTemplateError as error:  # it is told when it is used
        logger.debug("the chat template does not render a conversation: %s", error)
        return None
    return None if end is None or end in (opens, tokenizer.bos_token) else special[end]


def _first(special: Mapping[str, int], text: str) -> str | None:
    """The special token that a text begins with, after white space."""
    return max((name for name in special if text.lstrip().startswith(name)), key=len, default=None)


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    return {
        token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special
    }
