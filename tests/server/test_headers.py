"""What goes with bodies: names of requests, other sites, gzip."""

import gzip
import json
import re
import tracemalloc

import pytest
from fake_server import running_server

from smartspec.server.http.body import _unzipped
from smartspec.server.http.keys import ApiKeys

BODY = json.dumps({"prompt": "One two"}).encode()


def test_every_answer_has_a_request_id(server, guarded_server):
    assert (
        server.http.get("/health", headers={"X-Request-Id": "a:b-1"}).headers["x-request-id"]
        == "a:b-1"
    )
    for url in ("/health", "/nowhere"):
        answer = server.http.get(url, headers={"X-Request-Id": "not one"})
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
    assert "x-request-id" in guarded_server.complete(prompt="a").headers


def test_other_sites(tokenizer, server):
    site, allowed = "https://a.example", "access-control-allow-origin"
    preflight = {"Origin": site, "Access-Control-Request-Method": "POST"}
    options = {"cors_origins": [site], "keys": ApiKeys({"right": 1.0})}
    with running_server(tokenizer, **options) as open_server:
        answer = open_server.http.options("/v1/completions", headers=preflight)
        refused = open_server.complete(headers={"Origin": site}, prompt="a")
        assert (answer.status_code, refused.status_code) == (200, 401)
        assert answer.headers[allowed] == refused.headers[allowed] == site
        other = preflight | {"Origin": "https://b"}
        assert open_server.http.options("/v1/completions", headers=other).status_code == 400
    assert allowed not in server.http.options("/v1/completions", headers=preflight).headers


def send(server, content: bytes, encoding: str = "gzip"):
    return server.http.post(
        "/v1/completions", content=content, headers={"Content-Encoding": encoding}
    )


def test_a_body_is_unzipped_up_to_its_limit():
    zipped = gzip.compress(bytes(2**27))
    tracemalloc.start()
    assert _unzipped(zipped, 2**20) is None
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**23


def test_bodies_may_be_gzipped(server):
    assert send(server, gzip.compress(BODY)).json()["choices"][0]["text"] == "One two"
    assert send(server, BODY, "identity").status_code == 200


@pytest.mark.parametrize(
    ("content", "encoding", "status"),
    [
        (BODY, "gzip", 400),
        (gzip.compress(BODY)[:-9], "gzip", 400),
        (gzip.compress(b" " * 2**24), "gzip", 413),
        (BODY, "br", 415),
    ],
    ids=["plain", "cut", "bomb", "other"],
)
def test_bodies_that_are_not_what_they_say(server, content, encoding, status):
    assert send(server, content, encoding).status_code == status
