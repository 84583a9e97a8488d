"""Fields of OpenAI's that clients send and that change nothing here."""

from typing import Annotated

from smartspec.server.body_model import Body, only


class HarmlessFields(Body):
    """Accepted and ignored; those for what this server does not do only with the value that does not ask for it."""

    user: str | None = None
    metadata: dict[str, object] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[object, only(["text"])] = None
