"""Fields of OpenAI's and vLLM's that clients send and that change nothing here."""

from typing import Annotated, Literal

from smartspec.server.http.body_model import Body, JsonObject, only


class HarmlessFields(Body):
    """Accepted and ignored. Options that this server lacks are accepted only with the value that turns them off."""

    user: str | None = None
    metadata: JsonObject | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    modalities: Annotated[object, only(["text"])] = None
    best_of: Annotated[object, only(1)] = None
    use_beam_search: Annotated[object, only(False)] = None
    length_penalty: Annotated[object, only(1, 1.0)] = None
    detokenize: Annotated[object, only(True)] = None
    spaces_between_special_tokens: Annotated[object, only(True)] = None
    return_token_ids: Annotated[object, only(False)] = None
    return_tokens_as_token_ids: Annotated[object, only(False)] = None


class HarmlessChatFields(Body):
    """Fields of chats only."""

    verbosity: Literal["low", "medium", "high"] | None = None
    prompt_cache_options: JsonObject | None = None
    prompt_cache_retention: str | None = None
