"""What web pages may not do with a server that needs no key: DNS rebinding, and POSTs of other
sites."""

import socket
from contextlib import closing

import pytest
from fake_server import FakeServer, check_error, running_server

from smartspec.cli.access import allowed_hosts

BODY = '{"prompt": "One two"}'


@pytest.fixture(scope="module")
def local_server(tokenizer):
    """As `smartspec serve` runs without a key."""
    options = {"allowed_hosts": ("llm.example",), "cors_origins": ("https://ui.example",)}
    with running_server(tokenizer, **options) as fake_server:
        yield fake_server


def get(server: FakeServer, host: str, path: str = "/v1/speculation"):
    return server.http.get(path, headers={"Host": host})


@pytest.mark.parametrize("path", ["/v1/speculation", "/v1/models", "/", "/health", "/nothing"])
def test_a_foreign_name_is_refused_on_every_path(local_server, path):
    answer = get(local_server, "rebound.attacker.example:8000", path)
    check_error(answer, 403, None, "--allowed-host", code="host_not_allowed")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8000", "[::1]:8000", "[::1]", "localhost", "LocalHost:8000", "localhost.:8000", "10.0.0.7",  # noqa: E501
     "a.localhost:1", "llm.example", "LLM.example:443", ""],
)  # fmt: skip
def test_names_of_its_own_are_answered(local_server, host):
    assert get(local_server, host).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["attacker.example", "127.0.0.1.attacker.example", "localhost.attacker.example", "xllm.example", "a.b:c",  # noqa: E501
     "llm.example.attacker.example", "attacker.example.", "localhost@attacker.example",
     "[attacker.example",
     "smartspec:8000", "ai", "ai."],
)  # fmt: skip
def test_names_that_only_look_so_are_refused(local_server, host):
    assert get(local_server, host).status_code == 403


def test_a_request_without_a_host_is_no_browsers(local_server):
    with local_server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "application/x-www-form-urlencoded"},  # curl -d
        {"Content-Type": "text/plain"},
        {"Origin": "https://ui.example"},
        {"Origin": "https://ui.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://llm.example"},
        {"Origin": "https://behind.a.proxy.example", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "chrome-extension://abc", "Sec-Fetch-Site": "none"},
        {"Origin": "http://localhost:1234", "Host": "localhost:1234"},
    ],
    ids=str,
)
def test_programs_and_pages_of_its_own_may_call(local_server, headers):
    answer = local_server.http.post("/v1/completions", content=BODY, headers=headers)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/json", None]
)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://attacker.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://[::1]:8000]"},
        {"Origin": "https://attacker.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://localhost:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_pages_of_other_sites_may_not_post(local_server, headers, kind):
    headers = headers | ({} if kind is None else {"Content-Type": kind})
    num_steps = local_server.executor.num_steps
    answer = local_server.http.post("/v1/completions", content=BODY, headers=headers)
    check_error(answer, 403, None, "--cors-origin", code="origin_not_allowed")
    assert "access-control-allow-origin" not in answer.headers
    assert local_server.executor.num_steps == num_steps


def test_pages_of_other_sites_may_look_at_what_is_no_secret(local_server):
    """Browsers keep the answer from them."""
    answer = local_server.http.get("/health", headers={"Origin": "https://attacker.example"})
    assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers


def test_all_sites_may_call_if_that_is_said(tokenizer):
    with running_server(tokenizer, allowed_hosts=("*",), cors_origins=("*",)) as server:
        headers = {"Origin": "https://any.example", "Host": "any.example"}
        assert server.http.post("/v1/completions", content=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("option", "address", "has_keys", "hosts"),
    [
        (None, "127.0.0.1", False, ()),
        (None, "127.0.0.1", True, None),
        (None, "0.0.0.0", False, None),
        ("A.example, b.example", "127.0.0.1", False, ("a.example", "b.example")),
        ("a.example", "0.0.0.0", True, ("a.example",)),
        ("*", "127.0.0.1", False, ("*",)),
    ],
)
def test_where_names_are_checked(option, address, has_keys, hosts):
    with closing(socket.create_server((address, 0))) as listener:
        assert allowed_hosts(option, listener, has_keys) == hosts


@pytest.mark.parametrize("option", ["", "http://a.example", "a.example:80", "*.example", "a,,b"])
def test_what_is_no_name_is_refused(option):
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
        pytest.raises(ValueError, match="--allowed-host"),
    ):
        allowed_hosts(option, listener, False)
