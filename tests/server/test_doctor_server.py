"""`smartspec doctor --url`: what it says follows from what the server says."""

import pytest
from fake_server import running_server

from smartspec.cli.doctor import DoctorOptions, doctor
from smartspec.cli.doctor_server import advice_on_state, totals
from smartspec.server.http.keys import ApiKeys


def shown(capsys, url: str, key: str | None = None) -> str:
    doctor(**vars(DoctorOptions(url=url, api_key=key)))
    return capsys.readouterr().out


def test_it_shows_a_server_before_and_after_requests(burst_server, capsys):
    burst_server.complete(prompt="One two three four five")
    text = shown(capsys, f"{burst_server.url}/v1/")
    assert f"fake-model at {burst_server.url}, policy fixed:6, drafters prompt-lookup" in text
    assert (
        "per request and step" in text
        and "83% were accepted" in text
        and "Nothing to change." in text
    )


def test_a_server_without_requests_says_so(tokenizer, capsys):
    with running_server(tokenizer) as server:
        assert "No request has been answered" in shown(capsys, server.url)


def test_what_is_wrong_is_named_with_the_remedy():
    state = {
        "policy_state": {"pause": "slower than plain decoding"},
        "cost_model": {"median_relative_error": 0.35},
        "controller_errors": {"plan": 2},
    }
    lines = list(
        advice_on_state(state, totals("smartspec_requests_waiting 7.0\n# HELP smartspec_x y\n"))
    )
    for line, words in zip(
        lines, ("drafts are paused", "off by 35%", "failed 2 times", "7 requests wait"), strict=True
    ):
        assert words in line
    assert not list(advice_on_state({"cost_model": {"median_relative_error": None}}, {}))


def test_it_says_that_a_key_is_needed_and_that_no_server_is_there(tokenizer, capsys):
    with running_server(tokenizer, keys=ApiKeys({"secret": 1.0})) as server:
        with pytest.raises(ValueError, match="--api-key"):
            shown(capsys, server.url)
        assert "fake-model" in shown(capsys, server.url, "secret")
        url = server.url
    with pytest.raises(ValueError, match="no server answers"):
        shown(capsys, url)
