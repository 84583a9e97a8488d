"""Fields that clients send and that change no text here, and those that would and cannot be
honoured."""

from typing import Annotated

from smartspec.server.http.body_model import Body, Ignored, never, only

NO_GRAMMAR = (
    "this server takes JSON schemas, regular expressions and choices: see response_format, "
    "structured_outputs"
)


class AccountFields(Body):
    """What OpenAI's clients say of their account and of what its servers keep: ignored."""

    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    prompt_cache_key: Ignored = None
    safety_identifier: Ignored = None


class HarmlessFields(AccountFields):
    """Accepted and ignored, whatever they hold. Options that this server lacks and that would
    change the answer are accepted only with the value that turns them off."""

    length_penalty: Ignored = None  # of beam search
    spaces_between_special_tokens: Ignored = None  # of slow tokenizers
    modalities: Annotated[object, only(["text"])] = None
    best_of: Annotated[object, only(1)] = None
    use_beam_search: Annotated[object, only(False)] = None
    detokenize: Annotated[object, only(True)] = None
    return_token_ids: Annotated[object, only(False)] = None
    return_tokens_as_token_ids: Annotated[object, only(False)] = None
    # Grammars in other servers' words.
    guided_grammar: Annotated[object, never(NO_GRAMMAR)] = None
    grammar: Annotated[object, only("")] = None
    json_schema: Annotated[object, only({})] = None
    regex: Annotated[object, never(NO_GRAMMAR)] = None
    ebnf: Annotated[object, never(NO_GRAMMAR)] = None
    structural_tag: Annotated[object, never(NO_GRAMMAR)] = None
