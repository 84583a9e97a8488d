"""A server with a fake model on a port of its own, and clients for it."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import httpx
import openai
from fake_core import EchoExecutor, make_core

from smartspec.core.engine_core import EngineCore
from smartspec.engine.runtime.async_engine import Admission, AsyncEngine, TextModel
from smartspec.server.app import About, AppOptions, create_app
from smartspec.server.http.connections import LimitedConnection
from smartspec.server.http.keys import ApiKeys
from smartspec.server.http.uvicorn_server import HttpServer
from smartspec.server.structured.grammars import GrammarCompiler

MODEL = "fake-model"
MAX_MODEL_LEN = 512
MAX_BATCH = 4
MAX_QUEUE = 4


class NeverHalfClosed(LimitedConnection):
    """Its clients have left when they have closed their side, however early."""

    half_close_seconds = -1.0


@dataclass(frozen=True)
class FakeServer:
    """A running server. http: a plain client, client: OpenAI's."""

    url: str
    core: EngineCore
    engine: AsyncEngine
    web_server: HttpServer
    http: httpx.Client
    client: openai.OpenAI

    @property
    def executor(self) -> EchoExecutor:
        return self.core.executor

    def complete(self, headers: dict | None = None, **body) -> httpx.Response:
        return self.http.post("/v1/completions", json=body, headers=headers)

    def chat(self, **body) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=body)


@cache
def grammar_compiler(tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, len(tokenizer), frozenset({tokenizer.eos_token_id}))


@contextmanager
def running_server(
    tokenizer,
    *,
    draft_length: int = 0,
    max_batch: int = MAX_BATCH,
    max_queue: int = MAX_QUEUE,
    max_queue_per_client: int | None = None,
    keys: ApiKeys | None = None,
    api_key: str = "unused",
    drain_seconds: float = 0.0,
    strict_fields: bool = False,
    connection: type[LimitedConnection] = LimitedConnection,
    policy: str = "adaserve",
    kv_tokens: int = 2048,
    sampling_defaults: Mapping[str, float] = MappingProxyType({}),
    **app_options,
) -> Iterator[FakeServer]:
    sizes = {"max_batch": max_batch, "max_model_len": MAX_MODEL_LEN, "kv_tokens": kv_tokens}
    core = make_core(tokenizer.eos_token_id, draft_length=draft_length, **sizes)
    model = TextModel(
        tokenizer,
        frozenset({tokenizer.eos_token_id}),
        len(tokenizer),
        MAX_MODEL_LEN,
        sampling_defaults,
    )
    engine = AsyncEngine(core, model, Admission(max_batch, max_queue, max_queue_per_client))
    options = {"policy": policy, "strict_fields": strict_fields, **app_options}
    options |= {} if keys is None else {"keys": keys}
    compiler = grammar_compiler(tokenizer)
    with served(
        engine, tokenizer, compiler, api_key, drain_seconds, connection, **options
    ) as server:
        yield server


@contextmanager
def served(
    engine: AsyncEngine,
    tokenizer,
    compiler: GrammarCompiler,
    api_key: str = "unused",
    drain_seconds: float = 0.0,
    connection: type[LimitedConnection] = LimitedConnection,
    timeout: float = 30,
    policy: str = "adaserve",
    forced_acceptance: float | None = None,
    names: tuple[str, ...] = (MODEL,),
    **app_options,
) -> Iterator[FakeServer]:
    """A server around any engine. timeout: of its clients, in seconds."""
    about = About(names, policy, drafters=("prompt-lookup",), forced_acceptance=forced_acceptance)
    app = create_app(engine, tokenizer, compiler, about, AppOptions(**app_options))
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    web_server = HttpServer(app, engine, drain_seconds=drain_seconds, connection=connection)
    thread = threading.Thread(target=web_server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        eventually(lambda: web_server.started)
        with httpx.Client(base_url=url, timeout=timeout) as http:
            client = openai.OpenAI(
                base_url=f"{url}/v1", api_key=api_key, max_retries=0, timeout=timeout
            )
            yield FakeServer(url, engine.core, engine, web_server, http, client)
    finally:
        if isinstance(engine.core.executor, EchoExecutor):
            engine.core.executor.let_go()
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
