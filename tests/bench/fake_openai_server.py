"""A small real HTTP server that answers as the text of the prompt tells it to, whatever the time of
day."""

import asyncio
import json
import sys
import threading
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

WORDS = ["One", " two", " três"]
# Deltas of vLLM, which has thoughts under one name or both, and of OpenAI, whose calls come in
# pieces.
THOUGHTS = [
    {"reasoning": "a"},
    {"reasoning_content": "b"},
    {"reasoning_content": "c", "reasoning": "c"},
]
CALLS = [
    {
        "tool_calls": [
            {"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": ""}}
        ]
    },
    {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
    {"tool_calls": None, "refusal": "no"},
]


class FakeServer:
    """The app and what it saw: bodies received, the most requests under way at once."""

    def __init__(self):
        self.bodies: list[dict] = []
        self.authorizations: list[str | None] = []
        self.num_under_way = 0
        self.most_under_way = 0
        self.answers_from = 1  # requests under way before any is answered
        self.enough_under_way = asyncio.Event()
        self.waiting = threading.Event()
        self.num_decode_rows = 0
        self.url = ""
        self.app = FastAPI()
        self.app.get("/v1/models")(self.models)
        self.app.get("/health")(self.models)
        self.app.get("/metrics")(self.metrics)
        self.app.get("/v1/speculation")(self.speculation)
        self.app.post("/v1/chat/completions")(self.complete)
        self.app.post("/v1/completions")(self.complete)

    async def models(self):
        return {"object": "list", "data": [{"id": "m"}, {"id": "other"}]}

    async def metrics(self):
        rows = self.num_decode_rows
        names = {
            "draft_tokens": 4 * rows,
            "verified_tokens": 2 * rows,
            "accepted_tokens": rows,
            "decode_rows": rows,
        }
        return PlainTextResponse(
            "".join(f"smartspec_{name}_total {value}.0\n" for name, value in names.items())
        )

    async def speculation(self):
        return {"policy": "goodput"}

    async def complete(self, request: Request):
        body = await request.json()
        self.bodies.append(body)
        self.authorizations.append(request.headers.get("authorization"))
        prompt = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        if prompt == "busy":
            error = {"message": "the queue is full", "type": "rate_limit_error", "code": None}
            return JSONResponse({"error": error}, status_code=429)
        if prompt == "nonsense":
            return PlainTextResponse("data: nonsense\n\n")
        return StreamingResponse(
            self.stream(prompt, chat="messages" in body), media_type="text/event-stream"
        )

    async def stream(self, prompt: str, chat: bool):
        self.num_under_way += 1
        self.most_under_way = max(self.most_under_way, self.num_under_way)
        if self.num_under_way >= self.answers_from:
            self.enough_under_way.set()
        try:
            if prompt == "hang":
                self.waiting.set()
                await asyncio.Event().wait()
            await self.enough_under_way.wait()
            for event in _events(prompt, chat):
                # two parts, one of them cutting a character in half: parts of a body need not be
                # whole lines
                data = b"data: " + event + b"\r\n\r\n"
                cut = data.find("ê".encode()) + 1 or 9
                yield data[:cut]
                yield data[cut:]
            self.num_decode_rows += 10
        finally:
            self.num_under_way -= 1


def _events(prompt: str, chat: bool):
    def chunk(**fields) -> bytes:
        return json.dumps({"object": "chunk", **fields}, ensure_ascii=False).encode()

    def choice(content: dict, finish_reason: str | None = None) -> bytes:
        return chunk(choices=[content | {"index": 0, "finish_reason": finish_reason}])

    def piece(text: str | None, finish_reason: str | None = None) -> bytes:
        return choice({"delta": {"content": text}} if chat else {"text": text}, finish_reason)

    if chat:
        yield choice({"delta": {"role": "assistant", "content": ""}})
    if prompt in ("think", "call a tool"):
        for delta in THOUGHTS if prompt == "think" else CALLS:
            yield choice({"delta": delta})
        yield piece(None, "tool_calls")
        yield b"[DONE]"
        return
    for word in WORDS[:2]:
        yield piece(word)
    if prompt == "break":
        return
    if prompt == "report an error":
        yield chunk(error={"message": "the engine died"})
        return
    yield piece(WORDS[2], "stop")
    if prompt != "no usage":
        yield chunk(
            choices=[], usage={"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
        )
    yield b"[DONE]"


@contextmanager
def run_fake_server():
    """Yield a FakeServer listening on a free port; stops it on the way out."""
    fake = FakeServer()
    server = uvicorn.Server(
        uvicorn.Config(fake.app, port=0, log_level="error", timeout_graceful_shutdown=1)
    )
    started = threading.Event()
    startup = server.startup

    async def report_startup(sockets=None):
        await startup(sockets)
        started.set()

    server.startup = report_startup
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert started.wait(timeout=30)
    fake.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield fake
    server.should_exit = True
    thread.join(timeout=10)


if __name__ == "__main__":
    uvicorn.run(FakeServer().app, port=int(sys.argv[1]), log_level="error")
