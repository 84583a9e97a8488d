"""A server of the default model, for tests of what the answers of a real model bring."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from default_model import load_once
from fake_server import FakeServer, served

from smartspec.control import LatencyModel, ProfileSample
from smartspec.engine.runtime import build
from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.engine.runtime.config import EngineConfig
from smartspec.engine.runtime.engine_thread import EngineThread
from smartspec.server.structured.grammars import GrammarCompiler


@contextmanager
def running_model(speculates: bool = False, **options) -> Iterator[FakeServer]:
    """The default model, loaded once for all tests; no profile is measured. options: of
    EngineConfig. speculates: on reasoning steps, where it is both models."""

    def latency(models, report) -> LatencyModel:
        sizes = [(rows, new) for rows in (1, 2, 4) for new in (1, 2, 4, 8, 16, 64)]
        target = [
            ProfileSample(n * r, n * r + 64 * r, r, 0.04 + 1e-4 * n * r, n * r) for r, n in sizes
        ]
        return LatencyModel.fit(target, [target for _ in models.drafters])

    config = EngineConfig(**{"max_batch": 6, "device": "cpu", "strict": True} | options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "load_model", load_once)
        patch.setattr(build, "profiled_latency", latency)
        thread = EngineThread()
        engine = thread.submit(lambda: build.build_engine(config)).result()
    loaded = engine.loaded
    compiler = GrammarCompiler(engine.tokenizer, loaded.vocab_size, loaded.eos_token_ids)
    async_engine = AsyncEngine(engine, thread)
    options = {
        "policy": config.policy,
        "timeout": 600,
        "forced_acceptance": config.forced_acceptance,
    }
    options |= {"speculator": (async_engine, "the-same")} if speculates else {}
    with served(async_engine, engine.tokenizer, compiler, **options) as server:
        yield server
