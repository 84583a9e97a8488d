"""Servers with a fake model and the real tokenizer."""

from functools import partial

import pytest
from default_model import default_tokenizer
from fake_server import running_server

from smartspec.server.http.keys import ApiKeys


@pytest.fixture(scope="session")
def tokenizer():
    return default_tokenizer()


@pytest.fixture(scope="module")
def server(tokenizer):
    with running_server(tokenizer) as fake_server:
        yield fake_server


@pytest.fixture
def own_server(tokenizer):
    """Of one test: nobody else has counted anything."""
    with running_server(tokenizer) as fake_server:
        yield fake_server


@pytest.fixture
def small_server(tokenizer):
    """One request runs, one waits."""
    with running_server(tokenizer, max_batch=1, max_queue=1) as fake_server:
        yield fake_server


@pytest.fixture
def guarded_server(tokenizer):
    """With an API key."""
    with running_server(
        tokenizer, keys=ApiKeys({"right": 1.0, "schlüssel": 1.0}), api_key="right"
    ) as fake_server:
        yield fake_server


@pytest.fixture(scope="module")
def burst_server(tokenizer):
    """Every decoding step delivers seven tokens."""
    with running_server(tokenizer, draft_length=6) as fake_server:
        yield fake_server


@pytest.fixture(params=["server", "burst_server"])
def either_server(request):
    """Steps bring one token, or seven."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def set_template(tokenizer, monkeypatch):
    """Gives the model another chat template."""
    return partial(monkeypatch.setattr, tokenizer, "chat_template")
