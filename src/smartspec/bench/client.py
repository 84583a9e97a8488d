"""One streamed request to an OpenAI-compatible server, timed from the client's side."""

import asyncio
import json
import math
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import httpx

from smartspec.bench.events import DONE, HEAD_BYTES, EventReader
from smartspec.workload.records import RequestRecord

WAITED_FOR = (429, 503)  # where they come with Retry-After
LEAST_PAUSE_SECONDS = 0.1
MAX_SHOWN = 300  # characters of what a server says of an error


@dataclass(frozen=True)
class Target:
    """The place that requests go to, and what they have in common."""

    base_url: str  # without the trailing /v1
    model: str
    api_key: str | None = None
    chat: bool = True
    temperature: float = 0.0
    ignore_eos: bool = False
    timeout_seconds: float = 600.0
    # tpot_target_seconds, ttft_target_seconds: wanted time per output token and to the first token
    tpot_target_seconds: float | None = None
    ttft_target_seconds: float | None = None
    sends_targets: bool = False  # the server is told
    # requests of another salt leave nothing here that is cached or drafted from
    cache_salt: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


@dataclass(frozen=True)
class LoadRequest:
    """The content of one request. seed is sent when it samples; system, a system message, with chat
    only."""

    prompt_id: str
    task: str
    prompt: str
    max_tokens: int
    seed: int = 0
    system: str | None = None
    cache_salt: str | None = None  # in place of the target's


class StreamedAnswer:
    """The answer of a server so far, in completion chunks or in one completion. Fields that are
    null count as not there. first_text: when the first text came, on time.perf_counter().
    num_refusals: see RequestRecord."""

    def __init__(self):
        self.num_refusals = 0
        self.first_text: float | None = None
        self.pieces: list[str] = []
        self.usage: dict[str, int] = {}
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.done = False
        self.is_stream = True

    @property
    def text(self) -> str:
        """Halves of a character, which JSON allows and UTF-8 does not, are put together or
        replaced."""
        return "".join(self.pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def feed(self, event: bytes) -> None:
        """Take in the data of one server-sent event. Raises ValueError where it is no chunk."""
        if event == DONE:
            self.done = True
            return
        try:
            self._read(json.loads(event) or {})
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{_line(event.decode(errors='replace'))[:HEAD_BYTES]!r} is none of its chunks"
            ) from error
        if self.first_text is None and self.pieces:
            self.first_text = time.perf_counter()

    def _read(self, chunk: dict) -> None:
        if chunk.get("error") or chunk.get("object") == "error":
            self.error = f"the server reported: {_error_message(chunk)}"
            return
        self.usage |= _counts(chunk.get("usage"))
        for choice in filter(None, chunk.get("choices") or ()):
            if text := _text_of(choice):
                self.pieces.append(text)
            reason = choice.get("finish_reason")
            self.finish_reason = str(reason) if reason else self.finish_reason

    def end(self, reader: EventReader) -> None:
        """There is no more. Some servers do not say [DONE]: a finish_reason says as much. Raises
        ValueError where there was no chunk."""
        self.is_stream = reader.is_stream
        is_empty = not (self.pieces or self.finish_reason or self.error)
        if not reader.num_events or (is_empty and not self.is_stream):
            head = _line(reader.head.decode(errors="replace"))
            raise ValueError(f"it begins with {head!r}" if head else "it is empty")
        if not (self.done or self.error or self.finish_reason or not self.is_stream):
            self.error = "the stream ended before [DONE]"


def _counts(usage: object) -> dict[str, int]:
    """The members of usage that are token counts."""
    if not isinstance(usage, dict):
        return {}
    return {
        name: int(count)
        for name, count in usage.items()
        if type(count) in (int, float) and 0 <= count < 2**53
    }


def _text_of(choice: dict) -> str:
    """All that tokens have brought in a chunk: an answer, thoughts, a refusal, calls of tools."""
    delta = choice.get("delta") or choice.get("message") or {}
    # some servers send it under both names
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    texts = [choice.get("text"), thought, delta.get("content"), delta.get("refusal")]
    for call in filter(None, delta.get("tool_calls") or ()):
        function = call.get("function") or {}
        texts += [function.get("name"), function.get("arguments")]
    return "".join(map(_joined, texts))


def _joined(content: object) -> str:
    """A text; the texts of content that comes in parts; arguments of a call that come as an object,
    as JSON."""
    if not content:
        return ""
    if isinstance(content, list):
        return "".join(map(_joined, content))
    if isinstance(content, dict):
        parts = [content[name] for name in ("text", "thinking", "refusal") if name in content]
        return "".join(map(_joined, parts)) if parts or "type" in content else json.dumps(content)
    if not isinstance(content, str):
        raise TypeError(f"{_line(repr(content))} is no text")
    return content


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
    targets = {
        "tpot_target_ms": target.tpot_target_seconds,
        "ttft_target_ms": target.ttft_target_seconds,
    }
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

    A server that says when to come back gets the request again then; the time counts as the
    request's. run_start: time.perf_counter() at the start of the run.
    """
    answer = StreamedAnswer()
    start = time.perf_counter()
    try:
        async with asyncio.timeout(target.timeout_seconds):
            while (
                seconds := await _read_response(
                    client, target, request_body(target, request), answer
                )
            ) is not None:
                answer.num_refusals += 1
                if time.perf_counter() - start + seconds >= target.timeout_seconds:
                    answer.error = (
                        f"{answer.error}; it says to come back after {seconds:g} s, which is past "
                        "the timeout"
                    )
                    break
                await asyncio.sleep(max(seconds, LEAST_PAUSE_SECONDS))
                answer.error = None
    except TimeoutError:
        answer.error = f"no complete answer within {target.timeout_seconds:g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        answer.error = _line(f"{type(error).__name__}: {error}".rstrip(": "))
    except ValueError as error:
        answer.error = _line(f"the answer is not a stream of completion chunks: {error}")
    end = time.perf_counter()
    has_ttft = answer.first_text is not None and answer.is_stream
    return RequestRecord(
        prompt_id=request.prompt_id,
        task=request.task,
        start_seconds=start - run_start,
        ttft_seconds=answer.first_text - start if has_ttft else None,
        end_to_end_seconds=end - start,
        num_prompt_tokens=answer.usage.get("prompt_tokens", 0),
        num_output_tokens=answer.usage.get("completion_tokens") or len(answer.pieces),
        has_usage=bool(answer.usage),
        finish_reason=answer.finish_reason,
        error=answer.error,
        text=answer.text,
        tpot_target_seconds=target.tpot_target_seconds,
        ttft_target_seconds=target.ttft_target_seconds,
        num_refusals=answer.num_refusals,
    )


async def _read_response(
    client: httpx.AsyncClient, target: Target, body: dict, answer: StreamedAnswer
) -> float | None:
    """Read one answer to its end. If the server says to come back, after how many seconds. Raises
    ValueError or httpx.HTTPError where there is no answer."""
    path = "/v1/chat/completions" if target.chat else "/v1/completions"
    async with client.stream(
        "POST", target.base_url + path, json=body, headers=target.headers
    ) as response:
        if response.status_code != 200:
            answer.error = (
                f"{response.status_code} "
                f"{_error_message(await response.aread()) or response.reason_phrase}"
            )
            seconds = _seconds_of(response.headers.get("retry-after"))
            if response.status_code in WAITED_FOR and seconds is not None:
                return seconds
            raise httpx.HTTPStatusError(answer.error, request=response.request, response=response)
        reader = EventReader()
        async for part in response.aiter_bytes():
            for event in reader.feed(part):
                answer.feed(event)
        for event in reader.end():
            answer.feed(event)
        answer.end(reader)
    return None


def _seconds_of(retry_after: str | None) -> float | None:
    """The seconds to wait by Retry-After, a number or a date; None if it is neither."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after)) if math.isfinite(float(retry_after)) else None
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None


def _error_message(body: bytes | dict) -> str:
    """The message of an error in OpenAI's shape, else the beginning of whatever the server said."""
    try:
        said = json.loads(body) if isinstance(body, bytes) else body
        error = said.get("error") or said
        message = error["message"] if isinstance(error, dict) else error
        if message:
            return _line(str(message))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return _line(body.decode(errors="replace") if isinstance(body, bytes) else str(body))


def _line(text: str) -> str:
    """One line that every terminal and file can show."""
    shown = "".join(
        character if character.isprintable() else " " for character in text[: 2 * MAX_SHOWN]
    )
    return " ".join(shown.split())[:MAX_SHOWN]
