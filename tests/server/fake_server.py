"""A server with a fake model on a port of its own, and clients for it."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType, SimpleNamespace
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from fake_core import EchoExecutor, make_core

from smartspec.core.engine_core import EngineCore
from smartspec.core.request import Request
from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.engine.runtime.build import Engine
from smartspec.engine.runtime.config import EngineConfig
from smartspec.engine.runtime.engine_thread import EngineThread
from smartspec.server.app import About, AppOptions, create_app
from smartspec.server.http.connections import LimitedConnection
from smartspec.server.http.uvicorn_server import HttpServer
from smartspec.server.structured.grammars import GrammarCompiler
from smartspec.server.structured.token_grammar import TokenGrammar

MODEL = "fake-model"
MAX_MODEL_LEN = 512
MAX_BATCH = 4
MAX_QUEUE = 4
whole_and_streamed = pytest.mark.parametrize("stream", [False, True])


class NeverHalfClosed(LimitedConnection):
    """Its clients have left when they have closed their side, however early."""

    half_close_seconds = -1.0


@dataclass(frozen=True)
class Answered:
    """What a chat brought, streamed or not. tokens: with their log-probabilities."""

    thought: str
    text: str
    calls: list
    reason: str
    tokens: list


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

    def post(self, path: str, body: dict) -> httpx.Response:
        return self.http.post(path, json=body)

    def got(self, path: str, body: dict) -> dict:
        """The answer, which is no refusal."""
        answer = self.post(path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def complete(self, headers: dict | None = None, **body) -> httpx.Response:
        return self.http.post("/v1/completions", json=body, headers=headers)

    def chat(self, **body) -> httpx.Response:
        return self.post("/v1/chat/completions", body)

    def recorded(self, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
        """The requests that reach the engine, as they come."""
        seen, add = [], self.core.add_request
        record = lambda request: (seen.append(request), add(request))  # noqa: E731
        monkeypatch.setattr(self.core, "add_request", record)
        return seen

    def completed(self, **body) -> str:
        """The text of a completion."""
        return self.got("/v1/completions", body)["choices"][0]["text"]

    def said(self, **body) -> str:
        """The text of a chat's answer."""
        return self.got("/v1/chat/completions", body)["choices"][0]["message"]["content"]

    def metrics(self) -> dict[str, float]:
        """Values of /metrics by name and labels, as they are written."""
        lines = self.http.get("/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def connect(self) -> socket.socket:
        address = urlsplit(self.url)
        return socket.create_connection((address.hostname, address.port), timeout=30)

    def answered(self, stream: bool = False, **fields) -> "Answered":
        """A chat by OpenAI's client."""
        answer = self.conversation(stream=stream, **fields)
        choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
        parts = [choice.delta if stream else choice.message for choice in choices]
        return Answered(
            thought="".join(getattr(part, "reasoning_content", None) or "" for part in parts),
            text="".join(part.content or "" for part in parts),
            calls=[call for part in parts for call in part.tool_calls or ()],
            reason=choices[-1].finish_reason,
            tokens=[
                token
                for choice in choices
                for token in (choice.logprobs and choice.logprobs.content) or ()
            ],
        )

    def completion(self, **fields):
        """By OpenAI's client."""
        return self.client.completions.create(model=MODEL, **fields)

    def response(self, **fields):
        """By OpenAI's client."""
        return self.client.responses.create(model=MODEL, **fields)

    def conversation(self, **fields):
        """A chat by OpenAI's client."""
        return self.client.chat.completions.create(model=MODEL, **fields)


def events_of(text: str) -> list[dict]:
    """The data of server-sent events."""
    data = [line.removeprefix("data: ") for line in text.split("\n") if line[:6] == "data: "]
    return [json.loads(each) for each in data if each != "[DONE]"]


@cache
def grammar_compiler(tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, len(tokenizer), frozenset({tokenizer.eos_token_id}))


def compiled(tokenizer, requested) -> TokenGrammar:
    """requested: of a body's grammars."""
    return grammar_compiler(tokenizer).compile(requested.definition())


def allows(grammar: TokenGrammar, tokenizer, text: str) -> bool:
    token_ids = tokenizer(text)["input_ids"]
    return grammar.num_allowed(token_ids) == len(token_ids)


def user(content: object) -> dict:
    return {"role": "user", "content": content}


def assistant(content: object) -> dict:
    return {"role": "assistant", "content": content}


def system(content: object) -> dict:
    return {"role": "system", "content": content}


def text_part(text: str) -> dict:
    return {"type": "text", "text": text}


def function(name: str, parameters: dict | None = None) -> dict:
    """A tool of a chat."""
    described = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name} | described}


def form_of(schema: dict) -> dict:
    """A response_format."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def check_error(
    answer: httpx.Response, status: int, param: str | None, *words: str, code: str | None = None
) -> None:
    """A refusal in OpenAI's shape, whose message has these words. code: where it matters."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param and code in (None, error["code"]), error
    for word in words:
        assert word in error["message"], error


def fake_engine(
    core: EngineCore,
    tokenizer,
    *,
    max_batch: int = MAX_BATCH,
    max_queue: int = MAX_QUEUE,
    max_queue_per_client: int | None = None,
    sampling_defaults: Mapping[str, float] = MappingProxyType({}),
    idle_work: Iterable[None] = (),
) -> AsyncEngine:
    """Around a fake core. max_queue_per_client: None for the whole queue."""
    sizes = {"max_batch": max_batch, "max_queue": max_queue}
    of_client = {"max_queue_per_client": max_queue_per_client or max_queue}
    loaded = SimpleNamespace(
        tokenizer=tokenizer,
        eos_token_ids=frozenset({tokenizer.eos_token_id}),
        vocab_size=len(tokenizer),
        sampling_defaults=sampling_defaults,
    )
    config = EngineConfig(policy="off", drafters=(), **sizes, **of_client)
    engine = Engine(core, loaded, config, MAX_MODEL_LEN, kernels={})
    return AsyncEngine(engine, EngineThread(), idle_work)


@contextmanager
def running_server(
    tokenizer,
    *,
    draft_length: int = 0,
    max_batch: int = MAX_BATCH,
    max_queue: int = MAX_QUEUE,
    max_queue_per_client: int | None = None,
    kv_tokens: int = 2048,
    sampling_defaults: Mapping[str, float] = MappingProxyType({}),
    **options,
) -> Iterator[FakeServer]:
    """A server of a fake model. options: of served."""
    sizes = {"max_batch": max_batch, "max_model_len": MAX_MODEL_LEN, "kv_tokens": kv_tokens}
    core = make_core(tokenizer.eos_token_id, draft_length=draft_length, **sizes)
    engine = fake_engine(
        core,
        tokenizer,
        max_batch=max_batch,
        max_queue=max_queue,
        max_queue_per_client=max_queue_per_client,
        sampling_defaults=sampling_defaults,
    )
    with served(engine, tokenizer, grammar_compiler(tokenizer), **options) as server:
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
