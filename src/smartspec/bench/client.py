"""One streamed request to an OpenAI-compatible server, timed from the client's side."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import httpx

from smartspec.workload.records import RequestRecord


@dataclass(frozen=True)
class Target:
    """Where requests go and what they have in common. base_url: without the trailing /v1. tpot_target_seconds,
    ttft_target_seconds: wanted time per output token and to the first token; sends_targets: the server is told.
    cache_salt: requests of another salt leave nothing here that is cached or drafted from."""

    base_url: str
    model: str
    api_key: str | None = None
    chat: bool = True
    temperature: float = 0.0
    ignore_eos: bool = False
    timeout_seconds: float = 600.0
    tpot_target_seconds: float | None = None
    ttft_target_seconds: float | None = None
    sends_targets: bool = False
    cache_salt: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


@dataclass(frozen=True)
class LoadRequest:
    """What one request sends. seed is sent when it samples; system, a system message, with chat only. cache_salt: in
    place of the target's."""

    prompt_id: str
    task: str
    prompt: str
    max_tokens: int
    seed: int = 0
    system: str | None = None
    cache_salt: str | None = None


class StreamedAnswer:
    """What a stream of completion chunks has said so far."""

    def __init__(self):
        self.pieces: list[str] = []
        self.usage: dict = {}
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.done = False

    def feed(self, event: bytes) -> None:
        """Take in the data of one server-sent event. Raises ValueError if it is not a completion chunk."""
        if event == b"[DONE]":
            self.done = True
            return
        chunk = json.loads(event)
        if "error" in chunk:
            self.error = f"the server reported: {_error_message(chunk)}"
            return
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices", ()):
            if text := _text_of(choice):
                self.pieces.append(text)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason


def _text_of(choice: dict) -> str:
    """All that tokens have brought in a chunk: an answer, thoughts, a refusal, calls of tools."""
    delta = choice.get("delta") or {}
    thought = delta.get("reasoning_content") or delta.get("reasoning")  # some servers send it under both names
    texts = [choice.get("text"), thought, delta.get("content"), delta.get("refusal")]
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        texts += [function.get("name"), function.get("arguments")]
    return "".join(text for text in texts if text)


def request_body(target: Target, request: LoadRequest) -> dict:
    body = {
        "model": target.model,
        "max_tokens": request.max_tokens,
        "temperature": target.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.temperature > 0:
        body["seed"] = request.seed
    if target.ignore_eos:
        body["ignore_eos"] = True
    if salt := request.cache_salt or target.cache_salt:
        body["cache_salt"] = salt
    targets = {"tpot_target_ms": target.tpot_target_seconds, "ttft_target_ms": target.ttft_target_seconds}
    wanted = {name: 1000 * seconds for name, seconds in targets.items() if seconds is not None}
    if target.sends_targets and wanted:
        body["speculation"] = wanted
    if not target.chat:
        return body | {"prompt": request.prompt}
    system = [{"role": "system", "content": request.system}] if request.system else []
    return body | {"messages": [*system, {"role": "user", "content": request.prompt}]}


async def send_request(
    client: httpx.AsyncClient, target: Target, request: LoadRequest, run_start: float
) -> RequestRecord:
    """Send one request and read its answer to the end. Failures are recorded, not raised.

    run_start: time.perf_counter() at the start of the run.
    """
    answer = StreamedAnswer()
    start = time.perf_counter()
    first_text: float | None = None
    try:
        stream = _stream_events(client, target, request_body(target, request))
        async with asyncio.timeout(target.timeout_seconds), aclosing(stream) as events:
            async for event in events:
                answer.feed(event)
                if first_text is None and answer.pieces:
                    first_text = time.perf_counter()
        if not (answer.done or answer.error):
            answer.error = "the stream ended before [DONE]"
    except TimeoutError:
        answer.error = f"no complete answer within {target.timeout_seconds:g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        answer.error = f"{type(error).__name__}: {error}".rstrip(": ")
    except (ValueError, AttributeError, TypeError) as error:
        answer.error = f"the answer is not a stream of completion chunks: {error}"
    end = time.perf_counter()
    return RequestRecord(
        prompt_id=request.prompt_id,
        task=request.task,
        start_seconds=start - run_start,
        ttft_seconds=None if first_text is None else first_text - start,
        end_to_end_seconds=end - start,
        num_prompt_tokens=answer.usage.get("prompt_tokens") or 0,
        num_output_tokens=answer.usage.get("completion_tokens") or len(answer.pieces),
        has_usage=bool(answer.usage),
        finish_reason=answer.finish_reason,
        error=answer.error,
        text="".join(answer.pieces),
        tpot_target_seconds=target.tpot_target_seconds,
        ttft_target_seconds=target.ttft_target_seconds,
    )


async def _stream_events(client: httpx.AsyncClient, target: Target, body: dict) -> AsyncGenerator[bytes, None]:
    """Data of the server-sent events of one answer. Raises ValueError or httpx.HTTPError when there is none."""
    path = "/v1/chat/completions" if target.chat else "/v1/completions"
    async with client.stream("POST", target.base_url + path, json=body, headers=target.headers) as response:
        if response.status_code != 200:
            message = _error_message(await response.aread())
            raise httpx.HTTPStatusError(
                f"{response.status_code} {message}", request=response.request, response=response
            )
        rest = b""
        async for part in response.aiter_bytes():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip()
        if rest.startswith(b"data:"):
            yield rest[5:].strip()


def _error_message(body: bytes | dict) -> str:
    """The message of an error in OpenAI's shape, else the beginning of whatever the server said."""
    try:
        error = (json.loads(body) if isinstance(body, bytes) else body)["error"]
        return str(error["message"]) if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        return (body.decode(errors="replace") if isinstance(body, bytes) else str(body))[:200]
