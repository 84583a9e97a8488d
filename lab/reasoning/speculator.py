"""The engine of the smaller model beside that of the served one."""

from dataclasses import replace
from functools import partial

from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.engine.runtime.build import Engine, build_engine
from smartspec.engine.runtime.drafter_kinds import check_same_tokens
from smartspec.engine.runtime.engine_thread import EngineThread


def load_speculator(name: str, engine: Engine) -> tuple[AsyncEngine, str]:
    """An engine of a smaller model, whose vocabulary and context must be those of the served one.
    Raises ValueError as build_engine."""
    thread = EngineThread()
    config = replace(
        engine.config, model=name, chat_template=None, drafters=None, max_model_len=None,
        datastore=None, datastore_memory=None, decision_log=None,
    )  # fmt: skip
    small = thread.submit(partial(build_engine, config, report=partial(print, flush=True))).result()
    remedy = "use a --speculator of the same family"
    large = engine.loaded
    if large.vocab_size != small.loaded.vocab_size:
        raise ValueError(
            f"{name!r} has a vocabulary of {small.loaded.vocab_size} tokens, {large.name!r} of "
            f"{large.vocab_size}: {remedy}"
        )
    check_same_tokens(large, small.loaded, remedy)
    if small.max_model_len < engine.max_model_len:
        raise ValueError(
            f"--speculator {name} has {small.max_model_len} positions, the model serves "
            f"{engine.max_model_len}: start with --max-model-len {small.max_model_len}"
        )
    return AsyncEngine(small, thread), name
