"""Fields that clients send and that change no text here, and those that would and cannot be
honoured."""

from typing import Annotated

from smartspec.server.http.body_model import Body, Ignored, never, only

NO_GRAMMAR = (
    "this server takes JSON schemas, regular expressions and choices: see response_format, "
    "structured_outputs"
)

# Types of fields that may be there, as long as they request nothing.
Off = Annotated[object, only(False)]
NoText = Annotated[object, only("")]
NoList = Annotated[object, only([])]
NotDemanded = Annotated[object, only("none", "auto")]
NoGrammar = Annotated[object, never(NO_GRAMMAR)]


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
    use_beam_search: Off = None
    detokenize: Annotated[object, only(True)] = None
    return_token_ids: Off = None
    return_tokens_as_token_ids: Off = None
    # Grammars in other servers' words.
    guided_grammar: NoGrammar = None
    grammar: NoText = None
    json_schema: Annotated[object, only({})] = None
    regex: NoGrammar = None
    ebnf: NoGrammar = None
    structural_tag: NoGrammar = None
