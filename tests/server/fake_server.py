"""A server with a fake model on a port of its own, and clients for it."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import openai
import uvicorn
from fake_core import EchoExecutor, make_core

from smartspec.core.engine_core import EngineCore
from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.server.app import create_app

MODEL = "fake-model"
MAX_MODEL_LEN = 512
MAX_BATCH = 4
MAX_QUEUE = 4


@dataclass(frozen=True)
class FakeServer:
    """A running server. http: a plain client, client: OpenAI's."""

    url: str
    core: EngineCore
    engine: AsyncEngine
    http: httpx.Client
    client: openai.OpenAI

    @property
    def executor(self) -> EchoExecutor:
        return self.core.executor

    def complete(self, **body) -> httpx.Response:
        return self.http.post("/v1/completions", json=body)

    def chat(self, **body) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=body)


@contextmanager
def running_server(
    tokenizer,
    *,
    draft_length: int = 0,
    max_batch: int = MAX_BATCH,
    max_queue: int = MAX_QUEUE,
    api_key: str | None = None,
    policy: str = "adaserve",
) -> Iterator[FakeServer]:
    core = make_core(
        tokenizer.eos_token_id, draft_length=draft_length, max_batch=max_batch, max_model_len=MAX_MODEL_LEN
    )
    engine = AsyncEngine(
        core,
        tokenizer,
        eos_token_ids=frozenset({tokenizer.eos_token_id}),
        vocab_size=len(tokenizer),
        max_model_len=MAX_MODEL_LEN,
        max_batch=max_batch,
        max_queue=max_queue,
    )
    app = create_app(engine, tokenizer, MODEL, policy=policy, drafters=("prompt-lookup",), api_key=api_key)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    web_server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=web_server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        eventually(lambda: web_server.started)
        with httpx.Client(base_url=url, timeout=30) as http:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=api_key or "unused", max_retries=0, timeout=30)
            yield FakeServer(url, core, engine, http, client)
    finally:
        core.executor.let_go()
        web_server.should_exit = True
        thread.join(timeout=30)
    assert not engine.alive, "the engine thread outlived its server"


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until another thread has brought the condition about."""
    deadline = time.monotonic() + 30
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        pause.wait(0.002)
