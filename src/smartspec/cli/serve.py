"""`smartspec serve`: an OpenAI-compatible server on one model."""

import errno
import gc
import os
import resource
import signal
import socket
import sys
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from smartspec.cli.access import allowed_hosts, api_keys, check_exposure, cors_origins
from smartspec.cli.config_file import read_classes, use_config_file
from smartspec.cli.engine_options import engine_config_of
from smartspec.cli.logs import LogFormat, configure_logs
from smartspec.cli.options import command

if TYPE_CHECKING:
    from smartspec.engine.runtime.build import Engine
    from smartspec.engine.runtime.engine_thread import EngineThread
    from smartspec.server.app import AppOptions

SWITCH_INTERVAL_SECONDS = 0.0005
OPEN_FILES = 4096  # twice the connections there may be


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of `smartspec serve`: the model, the way it is served, and its clients."""

    config: Annotated[
        Path | None,
        Option(help="TOML file of these options.", callback=use_config_file, is_eager=True),
    ] = None
    model: Annotated[
        str | None, Option(help="Hugging Face id, folder or GGUF file (default: built in).")
    ] = None
    served_model_name: Annotated[
        str | None,
        Option(help="Names (a,b) that clients use (default: of a path its last part)."),
    ] = None
    generation_config: Annotated[
        str,
        Option(help="Sampling options that a request leaves out: auto (the checkpoint's) or none."),
    ] = "auto"
    chat_template: Annotated[
        str | None,
        Option(help="Name of one of the model's chat templates, or a file (default: its default)."),
    ] = None
    drafter: Annotated[
        str | None,
        Option(
            help="prompt-lookup, recycling, prediction, datastore, head (the model's own), a "
            "model, a head's folder, or module:Class (a,b); or none."
        ),
    ] = None
    datastore: Annotated[
        str | None,
        Option(help="Folder of `smartspec datastore build`, or none (default: the model's own)."),
    ] = None
    datastore_memory: Annotated[
        Path | None,
        Option(
            help="Folder in which finished answers are kept, to draft from them after a restart."
        ),
    ] = None
    speculator: Annotated[
        str | None,
        Option(
            help="A smaller model that may write reasoning steps, where a request wants that. Lossy."  # noqa: E501
        ),
    ] = None
    policy: Annotated[
        str,
        Option(help="goodput, off, fixed:K, uniform:K,K, a published one or module:Class."),
    ] = "goodput"
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000
    dtype: Annotated[str, Option(help="auto, float32, bfloat16 or float16.")] = "auto"
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = "auto"
    quantization: Annotated[
        str,
        Option(
            help=(
                "auto keeps a GGUF file's blocks, none unpacks them; int8 or int4 round floats to "
                "blocks."
            )
        ),
    ] = "auto"
    activations: Annotated[
        str,
        Option(
            help="int8 rounds inputs of linears on blocks to 8 bits, fp32 does not; auto: int8 "
            "where it is fast and hardly changes the model."
        ),
    ] = "auto"
    max_batch: Annotated[int, Option(help="Requests that run at once.")] = 32
    max_model_len: Annotated[
        int | None, Option(help="Most tokens of a request (default: the model's).")
    ] = None
    kv_tokens: Annotated[
        int | None, Option(help="KV memory in tokens (default: max-batch x 1024).")
    ] = None
    api_key: Annotated[str | None, Option(help="Clients must send this key.")] = None
    api_key_file: Annotated[
        Path | None, Option(help="File of keys, one per line, with shares.")
    ] = None
    admin_key: Annotated[str | None, Option(help="/metrics and /v1/speculation need this key.")] = (
        None
    )
    shared_cache: Annotated[
        bool,
        Option(
            "--shared-cache", help="Clients with different keys share cached prefixes and drafts."
        ),
    ] = False
    no_api_key: Annotated[
        bool,
        Option(
            "--no-api-key", help="Let other machines use the server without a key (see --host)."
        ),
    ] = False
    max_draft_tokens: Annotated[int | None, Option(help="Longest draft of a request.")] = None
    max_queue: Annotated[int, Option(help="Requests that may wait; more are answered 429.")] = 1024
    max_queue_per_client: Annotated[
        int | None,
        Option(help="Requests of one client that may wait (default: half of max-queue)."),
    ] = None
    strict_fields: Annotated[
        bool,
        Option(
            "--strict-fields", help="Refuse unknown fields of requests, and a max_tokens too large."
        ),
    ] = False
    no_page: Annotated[bool, Option("--no-page", help="Do not serve the live page at /.")] = False
    cors_origin: Annotated[
        str | None, Option(help="Sites (a,b) whose pages may call this server; * for all.")
    ] = None
    allowed_host: Annotated[
        str | None,
        Option(help="Names (a,b) of this server beside its address and localhost; * for any."),
    ] = None
    drain_seconds: Annotated[
        float,
        Option(min=0.0, help="Seconds that requests under way have to finish after SIGTERM."),
    ] = 30.0
    access_log: Annotated[bool, Option("--access-log", help="Log a line for every request.")] = (
        False
    )
    log_format: Annotated[LogFormat, Option(help="text, or json: an object a line.")] = (
        LogFormat.TEXT
    )
    decision_log: Annotated[
        Path | None,
        Option(help="File for a record of every step's decision, for `smartspec log replay`."),
    ] = None
    forced_acceptance: Annotated[
        float | None,
        Option(
            help="For measurements: accept every draft token with this chance. All text is invalid."
        ),
    ] = None


@command(ServerOptions)
def serve(options: ServerOptions) -> None:
    """Serve a model over HTTP, compatible with OpenAI's API. Ctrl-C stops it at once, SIGTERM after
    its requests."""
    config = engine_config_of(options)
    if options.forced_acceptance is not None and options.speculator is not None:
        raise ValueError(
            f"--forced-acceptance makes invalid text, which --speculator {options.speculator} "
            "would score"
        )
    reasoning = None if options.speculator is None else reasoning_of_lab(options.speculator)
    classes = read_classes(options.config)
    names = served_names(options.served_model_name, config.model)
    keys = api_keys(options.api_key, options.api_key_file, options.admin_key, options.shared_cache)
    origins = cors_origins(options.cors_origin)
    listener = bind(options.host, options.port)
    engine = None
    # Being told to end is like Ctrl-C: uvicorn raises the signal again when it has shut down, and
    # logs want closing.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        check_exposure(listener, bool(keys), options.no_api_key)
        hosts = allowed_hosts(options.allowed_host, listener, bool(keys))
        print("loading libraries", flush=True)
        from smartspec.engine.runtime.build import build_engine
        from smartspec.engine.runtime.engine_thread import EngineThread

        gc.freeze()
        configure_logs(options.log_format)
        thread = EngineThread()
        building = thread.submit(partial(build_engine, config, report=partial(print, flush=True)))
        from smartspec.server.app import AppOptions  # beside what loading computes

        engine = building.result()
        app_options = AppOptions(
            keys=keys,
            strict_fields=options.strict_fields,
            has_page=not options.no_page,
            classes=classes,
            access_log=options.access_log,
            cors_origins=origins,
            allowed_hosts=hosts,
            speculator=reasoning and reasoning["load"](options.speculator, engine),
        )
        run(engine, names, thread, listener, options.drain_seconds, app_options)
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()
        if engine is not None:
            engine.close()
    print("stopped")


def served_names(option: str | None, model: str) -> tuple[str, ...]:
    """Names of the model for clients. ValueError for an empty one, or two that are equal."""
    if option is None:
        path = Path(model).expanduser()
        return (Path(os.path.abspath(path)).name if path.exists() else model,)
    names = tuple(name.strip() for name in option.split(","))
    if "" in names or len(set(names)) != len(names):
        raise ValueError(
            f"--served-model-name {option!r}: give names separated by commas, each once"
        )
    return names


def reasoning_of_lab(name: str) -> "dict[str, Any]":
    """What loads and uses the smaller model. ValueError where it is not found."""
    from smartspec.core.lab_tables import WHERE, lab_table

    if found := lab_table("reasoning", "REASONING"):
        return found
    raise ValueError(f"--speculator {name}: speculation on reasoning steps is in {WHERE}")


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, before a model is loaded for nothing. Raises ValueError with
    the remedy."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
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
        raise ValueError(
            f"cannot listen on {host} port {port} ({error.strerror}): choose others"
        ) from error
    return listener


def raise_file_limit() -> None:
    """Room for as many connections as there may be, as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run(
    engine: "Engine",
    names: tuple[str, ...],
    thread: "EngineThread",
    listener: socket.socket,
    drain_seconds: float,
    options: "AppOptions",
) -> None:
    """Serve until interrupted."""
    from smartspec.engine.models.load import give_back_memory
    from smartspec.engine.runtime.async_engine import AsyncEngine
    from smartspec.server.app import About, create_app
    from smartspec.server.http.uvicorn_server import HttpServer
    from smartspec.server.openai.invalid_text import invalid_text_name
    from smartspec.server.structured.grammars import GrammarCompiler

    # The engine thread needs the interpreter back quickly after each kernel, whatever the HTTP side
    # is doing.
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    raise_file_limit()
    async_engine = AsyncEngine(engine, thread)
    config = engine.config
    if config.forced_acceptance is not None:
        names = (invalid_text_name(names[0], config.forced_acceptance),)
        print(
            f"WARNING: --forced-acceptance {config.forced_acceptance:g}: all text is invalid",
            flush=True,
        )
    compiler = GrammarCompiler(
        engine.tokenizer, engine.loaded.vocab_size, engine.loaded.eos_token_ids
    )
    about = About(
        names, config.policy, config.active_drafters, engine.kernels, config.forced_acceptance
    )
    app = create_app(async_engine, engine.tokenizer, compiler, about, options)
    give_back_memory()
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    said = ready_text(url, names[0], bool(options.keys), options.has_page)
    with closing(compiler):
        say = partial(print, said, flush=True)
        server = HttpServer(app, async_engine, drain_seconds=drain_seconds, on_ready=say)
        server.run(sockets=[listener])


def ready_text(url: str, model: str, needs_key: bool, has_page: bool = True) -> str:
    """The lines that are printed when the server is ready."""
    key = " -H 'Authorization: Bearer YOUR_KEY'" if needs_key else ""
    body = '{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64}'
    return (
        f"\nserving {model} at {url}  (OpenAI base URL: {url}/v1)\n"
        f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'\n"
        f"{f'{url}/ shows what it does. ' if has_page else ''}Ctrl-C stops."
    )
