"""The live page: its events, what it costs while no client watches, and the page itself in a
browser."""

import json
from itertools import islice

import chromium
import httpx
import pytest
from fake_server import FakeServer, events_of, eventually, running_server, whole_and_streamed

from smartspec.server.http.keys import ApiKeys
from smartspec.server.live.page import FILES

PATH = "/v1/speculation/events"
in_browser = pytest.mark.skipif(chromium.PROGRAM is None, reason="there is no chromium")


def events_until(server: FakeServer, is_last) -> list[dict]:
    """Events up to the first for which is_last holds; every one of them calls it."""
    seen = []
    with server.http.stream("GET", PATH) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line:
                seen.append(json.loads(line.removeprefix("data: ")))
                if is_last(seen[-1]):
                    return seen
    raise AssertionError("the stream ended")


def test_events_tell_what_the_engine_did(burst_server):
    def generate(event: dict) -> bool:
        if not event["num_steps"]:
            body = {
                "prompt": "One two three four five six seven eight",
                "speculation": {"workload_class": "counting"},
            }
            burst_server.complete(**body, max_tokens=9)
        return bool(event["num_steps"])

    events = events_until(burst_server, generate)
    assert events[0]["running"] == 0 and events[0]["policy"] == "adaserve"
    last = events[-1]
    assert last["generated_tokens"] == 9 and last["prompt_tokens"] == 8
    assert last["classes"] == [{"name": "counting", "verified": 6, "accepted": 6}]
    assert [step["rows"] for step in last["steps"]] == [[], [0, 0, 0, 0, 0, 0, 1], [1]]
    assert last["decision"]["what_if"]["planned"] == 300.0
    assert last["seconds"] >= 0.2


def test_nothing_is_computed_while_no_client_watches(server):
    idle = list(server.engine.listeners)
    events_until(server, lambda event: len(server.engine.listeners) > len(idle))
    eventually(lambda: server.engine.listeners == idle)


def test_two_viewers_get_the_same_events(server):
    with server.http.stream("GET", PATH) as one, httpx.stream("GET", server.url + PATH) as other:
        of_other = set(islice(filter(None, other.iter_lines()), 3))
        # it came first, and may have got some before
        assert any(line in of_other for line in islice(filter(None, one.iter_lines()), 100))


def test_the_stream_ends_with_the_server(tokenizer):
    with running_server(tokenizer) as server, server.http.stream("GET", PATH) as answer:
        lines = filter(None, answer.iter_lines())
        next(lines)
        server.web_server.should_exit = True
        assert len(list(lines)) < 20


def test_files_need_no_key_and_what_they_show_does(tokenizer):
    keys = ApiKeys({"right": 1.0}, admin_key="admin")
    with running_server(tokenizer, keys=keys) as server:
        for path, (_, media_type) in FILES.items():
            answer = server.http.get(path)
            assert answer.status_code == 200 and answer.headers["content-type"] == media_type
            assert server.http.head(path).status_code == 200
            assert "default-src 'none'" in answer.headers["content-security-policy"]
        for key, status in ((None, 401), ("right", 401), ("admin", 200)):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            with server.http.stream("GET", PATH, headers=headers) as answer:
                assert answer.status_code == status


def test_no_page(tokenizer):
    with running_server(tokenizer, has_page=False) as server:
        assert [server.http.get(path).status_code for path in FILES] == [404, 404, 404]


@whole_and_streamed
def test_report_says_which_text_was_drafted(burst_server, stream):
    prompt = "One two three four five six"
    answer = burst_server.complete(
        prompt=prompt, max_tokens=7, speculation={"report": True}, stream=stream
    )
    answers = events_of(answer.text) if stream else [answer.json()]
    pieces = [piece for each in answers for piece in each["choices"][0]["speculation"]["pieces"]]
    assert [piece["accepted"] for piece in pieces] == [False] + [True] * 5
    assert "".join(piece["text"] for piece in pieces) == prompt


def test_no_report_unless_requested(burst_server):
    assert "speculation" not in burst_server.complete(prompt="One two").json()["choices"][0]


@in_browser
def test_the_page_shows_a_chat_and_survives_its_server(tokenizer):
    with running_server(tokenizer, draft_length=6) as server, chromium.chromium(server.url) as page:
        page.wait_for("document.readyState === 'complete' && find('status').textContent === 'idle'")
        empty = page.run("find('lengths').toDataURL()")
        page.run("find('text').value = 'one two three four five'; find('send').click()")
        page.wait_for("document.querySelector('#log .about')")
        # the fake model says its prompt
        assert "helpful AI assistant" in page.text("#log .assistant")
        marked = page.run(
            "[...document.querySelectorAll('#log mark')].map(mark => mark.textContent).join('')"
        )
        # which was the target's own token after six drafts
        assert "a helpful" in marked and " AI" not in marked
        page.wait_for("steps.length > 2 && find('what-if').rows.length === 10")
        assert "300 tokens per second were expected" in page.text("#why")
        assert page.text("#what-if .planned th") == "as decided"
        assert "tokens/s, " in page.text("#what-if .planned td") and " x off" in page.text(
            "#what-if .planned td"
        )
        decision = "recent[recent.length - 1].decision, verified: [0], accepted: [0]"
        page.run(f"showDecision({{...{decision}, queried: false, what_if: null}})")
        assert (
            "Drafters were not queried" in page.text("#why")
            and page.run("find('what-if').rows.length") == 10
        )
        page.run(f"showDecision({{...{decision}, queried: true, what_if: null}})")
        assert "There was no draft to choose from" in page.text("#why")
        page.wait_for("find('classes').textContent.includes('no class')")
        assert page.run("find('lengths').toDataURL()") != empty
        for width in (360, 1200):
            page.look(width, 900, dark=width < 600)
            assert page.run("document.documentElement.scrollWidth <= innerWidth"), (
                f"wider than {width}"
            )
        server.web_server.should_exit = True
        page.wait_for(
            "find('status').dataset.state === 'gone' && document.body.classList.contains('stale')"
        )
        page.run("find('text').value = 'six'; find('send').click()")
        page.wait_for("document.querySelector('#log .error') && !answering")
        assert page.text("#log .error") == "That did not work: the server cannot be reached"
        assert page.run("find('text').value") == "six" and page.run("messages.length") == 2
        assert not [line for line in page.log if "exception" in line.lower()]


@in_browser
def test_a_new_chat_knows_nothing_of_the_answer_it_ended(tokenizer):
    with running_server(tokenizer) as server, chromium.chromium(server.url) as page:
        page.wait_for("document.readyState === 'complete' && find('status').textContent === 'idle'")
        page.run("find('text').value = 'one'; find('send').click(); find('clear').click()")
        page.wait_for("!answering")
        assert page.run("messages.length") == 0 and page.text("#log") == ""


@in_browser
def test_the_page_prompts_for_the_key_and_keeps_it(tokenizer):
    keys = ApiKeys({"schlüssel": 1.0})
    with running_server(tokenizer, keys=keys) as server, chromium.chromium(server.url) as page:
        page.wait_for("document.readyState === 'complete' && find('key').open")
        page.run("find('key-text').value = 'wrong'; find('key-form').requestSubmit()")
        page.wait_for("find('key').open && find('key-text').value === ''")
        page.run("find('key-text').value = 'schlüssel'; find('key-form').requestSubmit()")
        page.wait_for("find('status').textContent === 'idle'")
        page.run("find('text').value = 'one'; find('send').click()")
        page.wait_for("document.querySelector('#log .about, #log .error')")
        assert "helpful AI assistant" in page.text("#log .assistant")
        assert page.run("sessionStorage.getItem('smartspec-key-watch')") == "schlüssel"
