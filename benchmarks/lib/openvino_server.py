"""OpenVINO GenAI on a GGUF file, with as much of OpenAI's API as `benchmarks/peers.py` uses.

    python benchmarks/lib/openvino_server.py FILE PORT

Needs `pip install openvino-genai`, which nothing else here does. Its continuous batching takes in
requests between two steps; threads are those of OMP_NUM_THREADS, else all cores. The text of an
answer comes in two parts, its first token and the rest: clients that count time to the first token
and to the end see no difference.
"""

import asyncio
import json
import os
import queue
import threading
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import typer
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

CACHE_GIGABYTES = 4


def main(file: Path, port: int) -> None:
    """Serve a GGUF file until the process ends."""
    uvicorn.run(
        create_app(Batches(file), file.stem), host="127.0.0.1", port=port, log_level="warning"
    )


class Batches:
    """A thread that steps as long as there are requests."""

    def __init__(self, file: Path):
        import openvino_genai  # optional; --help works without it

        self._library = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIGABYTES
        threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(file), scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self.tokenizer = self._pipeline.get_tokenizer()
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    async def tokens(self, prompt: str, max_tokens: int) -> AsyncIterator[int]:
        """The tokens of a greedy answer of this length, as they come."""
        config = self._library.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = max_tokens, True, False
        got: asyncio.Queue[list[int]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self._requests.put(
            (prompt, config, lambda ids: loop.call_soon_threadsafe(got.put_nowait, ids))
        )
        num_left = max_tokens
        while num_left > 0:
            for token_id in await got.get():
                num_left -= 1
                yield token_id

    def _run(self) -> None:
        handles: list = []
        numbers = count()
        while True:
            while not handles or not self._requests.empty():
                prompt, config, give = self._requests.get()
                handles.append((self._pipeline.add_request(next(numbers), prompt, config), give))
            self._pipeline.step()
            for handle, give in handles:
                while handle.can_read():
                    give(
                        [
                            token_id
                            for output in handle.read().values()
                            for token_id in output.generated_ids
                        ]
                    )
            running = self._library.GenerationStatus.RUNNING
            handles = [(handle, give) for handle, give in handles if handle.get_status() == running]


def create_app(batches: Batches, model: str) -> FastAPI:
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict:
        return {}

    @app.get("/v1/models")
    async def models() -> dict:
        return {"object": "list", "data": [{"id": model, "object": "model"}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> StreamingResponse:
        body = await request.json()
        prompt = batches.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        return StreamingResponse(
            _events(batches, prompt, body["max_tokens"]), media_type="text/event-stream"
        )

    return app


async def _events(batches: Batches, prompt: str, max_tokens: int) -> AsyncIterator[str]:
    token_ids: list[int] = []
    first = ""
    async for token_id in batches.tokens(prompt, max_tokens):
        token_ids.append(token_id)
        if len(token_ids) == 1:
            first = batches.tokenizer.decode(token_ids)
            yield _event({"choices": [{"index": 0, "delta": {"content": first}}]})
    rest = batches.tokenizer.decode(token_ids).removeprefix(first)
    yield _event({"choices": [{"index": 0, "delta": {"content": rest}, "finish_reason": "length"}]})
    num_prompt = batches.tokenizer.encode(prompt, add_special_tokens=False).input_ids.shape[1]
    usage = {"prompt_tokens": num_prompt, "completion_tokens": len(token_ids)}
    yield _event({"choices": [], "usage": usage | {"total_tokens": sum(usage.values())}})
    yield "data: [DONE]\n\n"


def _event(chunk: dict) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


if __name__ == "__main__":
    typer.run(main)
