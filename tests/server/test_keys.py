"""Who may use a server, and with which key."""

import openai
import pytest
from fake_server import MODEL, check_error, running_server

from smartspec.cli.access import KEY_VARIABLES, api_keys, check_exposure, cors_origins
from smartspec.cli.serve import bind
from smartspec.core.origin import key_of
from smartspec.server.http.keys import ApiKeys, read_key_file
from smartspec.server.openai.completion_body import CompletionBody


def bearer(key: str) -> dict[str, bytes]:
    return {"Authorization": b"Bearer " + key.encode()}


def test_every_key_is_a_key(guarded_server):
    wrong_places = (
        {"Authorization": "Bearer"},
        {"Authorization": "right"},
        {"x-api-key": "Bearer right"},
    )
    for headers in ({}, bearer("wrong"), {"x-api-key": "wrong"}, *wrong_places):
        answer = guarded_server.http.get("/v1/models", headers=headers)
        check_error(answer, 401, None, "Authorization")
        assert answer.headers["www-authenticate"] == "Bearer"  # RFC 9110, 15.5.2
    for key in ("right", "schlüssel"):
        for headers in (bearer(key), {"x-api-key": key.encode()}):
            assert guarded_server.http.get("/v1/models", headers=headers).status_code == 200
    with pytest.raises(openai.AuthenticationError):
        guarded_server.client.with_options(api_key="wrong").completions.create(
            model=MODEL, prompt="a"
        )
    assert guarded_server.completion(prompt="One").choices[0].text == "One"
    assert guarded_server.http.get("/health").status_code == 200
    assert guarded_server.http.get("/metrics").status_code == 200
    assert guarded_server.http.get("/nowhere").status_code == 401


def test_a_bearer_token_goes_before_the_other_header(guarded_server):
    def status(headers: dict) -> int:
        return guarded_server.http.get(
            "/v1/models", headers={"x-api-key": "right"} | headers
        ).status_code

    assert status(bearer("wrong")) == 401
    assert status({"Authorization": "Basic of-a-proxy"}) == 200


def test_without_the_key_the_body_is_not_read(guarded_server):
    with guarded_server.connect() as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 5000000\r\n\r\n{"
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 401")


def test_the_admin_key_guards_what_shows_the_work_of_all(tokenizer):
    with running_server(tokenizer, keys=ApiKeys({"mine": 1.0}, admin_key="boss")) as server:
        for path in ("/metrics", "/v1/speculation"):
            for headers in ({}, bearer("mine")):
                answer = server.http.get(path, headers=headers)
                check_error(answer, 401, None, "--admin-key")
            assert server.http.get(path, headers=bearer("boss")).status_code == 200
        assert server.http.get("/v1/models", headers=bearer("boss")).status_code == 401


def test_keys_of_a_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# clients\nalpha\nbéta 2.5  # the large one\n\n", encoding="utf-8")
    assert read_key_file(path) == {"alpha": 1.0, "béta": 2.5}
    path.write_bytes("\ufeffalpha\r\nbeta 2.5\r\n".encode())  # as editors on Windows write it
    assert read_key_file(path) == {"alpha": 1.0, "beta": 2.5}
    path.write_text("alpha", encoding="utf-16")
    with pytest.raises(ValueError, match="keys is no text in UTF-8: save it as UTF-8"):
        read_key_file(path)
    for text, problem in (
        ("", "holds no keys"),
        ("a\na", "line 2"),
        ("a 0", "line 1"),
        ("a b", "line 1"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=problem):
            read_key_file(path)


@pytest.mark.parametrize("salt", [None, "own", "two words", "0" * 64 + " own"])
def test_whatever_salt_a_request_names_it_belongs_to_its_key(salt):
    """Its bounds are what counts, and no other key's."""
    fields = {"prompt": [1], "cache_salt": salt}
    scope = {
        "path": "/v1/completions",
        "headers": [(b"x-api-key", b"alpha")],
        "client": ("127.0.0.1", 1),
    }
    client = ApiKeys({"alpha": 1.0}).origin(scope)
    assert key_of(CompletionBody(**fields).origin(client).cache_salt) == client.client
    for keys in (ApiKeys(), ApiKeys({"alpha": 1.0}, shared_cache=True)):
        assert key_of(CompletionBody(**fields).origin(keys.origin(scope)).cache_salt) == ""


@pytest.mark.parametrize("key", ["", "two words", "tab\t"])
def test_keys_that_no_client_can_send_are_refused(key):
    for options in ((key, None, None), (None, None, key)):
        with pytest.raises(ValueError, match="an API key"):
            api_keys(*options, shared_cache=False)


@pytest.mark.parametrize("variable", KEY_VARIABLES)
def test_an_empty_variable_is_not_no_key(monkeypatch, variable):
    monkeypatch.setenv(variable, "")
    with pytest.raises(ValueError, match=f"{variable} is set but empty"):
        api_keys(None, None, None, shared_cache=False)


def test_other_machines_need_a_key_or_an_explicit_word():
    with bind("0.0.0.0", 0) as listener:
        with pytest.raises(ValueError, match="--no-api-key"):
            check_exposure(listener, has_keys=False, no_api_key=False)
        check_exposure(listener, has_keys=True, no_api_key=False)
        check_exposure(listener, has_keys=False, no_api_key=True)
    with bind("127.0.0.1", 0) as listener:
        check_exposure(listener, has_keys=False, no_api_key=False)


def test_sites_of_other_pages():
    assert cors_origins(None) == ()
    assert cors_origins("https://a.example, http://localhost:3000") == (
        "https://a.example",
        "http://localhost:3000",
    )
    assert cors_origins("*") == ("*",)


@pytest.mark.parametrize(
    "option", ["a.example", "https://a.example/", "https://A.example", "https://a.example,", " "]
)
def test_sites_that_no_browser_names_so_are_refused(option):
    with pytest.raises(ValueError, match=r"--cors-origin .*write sites as"):
        cors_origins(option)
