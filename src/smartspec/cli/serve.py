"""`smartspec serve`: an OpenAI-compatible server on one model."""

import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from smartspec.engine.runtime.async_engine import AsyncEngine
    from smartspec.engine.runtime.build import Engine
    from smartspec.engine.runtime.engine_thread import EngineThread

SWITCH_INTERVAL_SECONDS = 0.0005
SHUTDOWN_SECONDS = 2


def serve(
    model: Annotated[str | None, typer.Option(help="Hugging Face id, folder or GGUF file (default: built in).")] = None,
    drafter: Annotated[
        str, typer.Option(help="prompt-lookup, recycling, a draft model (a,b), or none.")
    ] = "prompt-lookup,recycling",
    policy: Annotated[str, typer.Option(help="goodput, off, fixed:K, uniform:K,K or a published one.")] = "goodput",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    max_batch: Annotated[int, typer.Option(help="Requests that run at once.")] = 32,
    max_model_len: Annotated[int | None, typer.Option(help="Most tokens of a request (default: the model's).")] = None,
    kv_tokens: Annotated[int | None, typer.Option(help="KV memory in tokens (default: max-batch x 1024).")] = None,
    api_key: Annotated[str | None, typer.Option(help="Clients must send this key.", envvar="SMARTSPEC_API_KEY")] = None,
    max_draft_tokens: Annotated[int | None, typer.Option(help="Longest draft of a request.")] = None,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait; more are answered 429.")] = 1024,
    decision_log: Annotated[
        Path | None, typer.Option(help="File for a record of every step's decision, for `smartspec replay`.")
    ] = None,
) -> None:
    """Serve a model over HTTP, compatible with OpenAI's API. Ctrl-C stops it."""
    from smartspec.engine.runtime.config import EngineConfig, parse_drafters

    options = {"model": model, "max_draft_tokens": max_draft_tokens}
    config = EngineConfig(
        drafters=parse_drafters(drafter),
        policy=policy,
        dtype=dtype,
        device=device,
        max_batch=max_batch,
        max_model_len=max_model_len,
        kv_tokens=kv_tokens,
        max_queue=max_queue,
        decision_log=decision_log,
        **{name: value for name, value in options.items() if value is not None},
    )
    listener = bind(host, port)
    engine = None
    # Being told to end is like Ctrl-C: uvicorn raises the signal again when it has shut down, and logs want closing.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from smartspec.engine.runtime.build import build_engine
        from smartspec.engine.runtime.engine_thread import EngineThread

        thread = EngineThread()
        engine = thread.submit(partial(build_engine, config, report=partial(print, flush=True))).result()
        run(engine, thread, listener, api_key)
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()
        if engine is not None:
            engine.close()
    print("stopped")


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, before a model is loaded for nothing. Raises ValueError with the remedy."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ValueError(f"--host {host}: there is no such address ({error.strerror})") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"port {port} of {host} is in use: stop what runs there or choose another --port"
            ) from error
        raise ValueError(f"cannot listen on {host} port {port} ({error.strerror}): choose others") from error
    return listener


def run(engine: "Engine", thread: "EngineThread", listener: socket.socket, api_key: str | None) -> None:
    """Serve until interrupted; the present state is shown as long as there is a terminal."""
    from smartspec.engine.runtime.async_engine import AsyncEngine
    from smartspec.server.app import create_app

    # The engine thread needs the interpreter back quickly after each kernel, whatever the HTTP side is doing.
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    async_engine = AsyncEngine.of(engine, thread)
    name = engine.loaded.name
    config = engine.config
    shown = {"policy": config.policy, "drafters": config.active_drafters, "kernels": engine.kernels}
    app = create_app(async_engine, engine.tokenizer, name, **shown, api_key=api_key)
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    with ExitStack() as stack:

        def on_ready() -> None:
            print(ready_text(url, name, api_key), flush=True)
            stack.enter_context(_live_state(async_engine, config.policy))

        _server(app, async_engine, on_ready).run(sockets=[listener])


def ready_text(url: str, model: str, api_key: str | None) -> str:
    """What to do with the server now that it runs."""
    key = "" if api_key is None else " -H 'Authorization: Bearer YOUR_KEY'"
    body = '{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64}'
    return (
        f"\nserving {model} at {url}  (OpenAI base URL: {url}/v1)\n"
        f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'\n"
        "Ctrl-C stops."
    )


def _server(app: "FastAPI", async_engine: "AsyncEngine", on_ready: Callable[[], None]) -> "uvicorn.Server":
    import uvicorn

    class Server(uvicorn.Server):
        """Says when it is ready, and ends the requests under way before it waits for their connections."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                on_ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await async_engine.stop()
            await super().shutdown(sockets)

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return Server(config)


def _live_state(async_engine: "AsyncEngine", policy: str) -> AbstractContextManager:
    if not sys.stdout.isatty():
        return nullcontext()
    from smartspec.cli.live import live_state

    return live_state(async_engine, policy)
