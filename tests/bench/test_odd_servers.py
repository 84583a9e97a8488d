"""What servers send: read, or one clear sentence that counts as a failed request."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from scripted_server import Answer, scripted

from smartspec.bench import client
from smartspec.bench.client import LoadRequest, Target
from smartspec.bench.events import EventReader
from smartspec.bench.load import LoadPlan
from smartspec.bench.probe import find_model, parse_counters, read_counters, read_policy
from smartspec.bench.report import notes
from smartspec.bench.run import measure


def asked(*answers: Answer, num_requests: int = 1, **options):
    requests = [LoadRequest(str(number), "", "Hi", 6) for number in range(num_requests)]
    with scripted(answers=answers) as server:
        return measure(Target(server.url, "m", **options), LoadPlan(requests, concurrency=1))


def chunk(content=None, finish_reason=None, **rest) -> dict:
    return {
        "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}],
        **rest,
    }


def events(*chunks: dict, end: str = "data: [DONE]\n\n") -> bytes:
    return ("".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + end).encode()


WHOLE = {"choices": [{"message": {"content": "ab"}, "finish_reason": "stop"}]}


def over_lines(chunk: dict) -> bytes:
    """An event whose data has several lines."""
    return b"data: " + json.dumps(chunk, indent=1).replace("\n", "\ndata: ").encode() + b"\n\n"


A, B = chunk("a"), chunk("b", "stop")
AB = events(A, B)
USAGE = {"prompt_tokens": 5, "completion_tokens": 2}
READ = {
    "null fields": events(
        chunk("a", error=None, usage=None),
        {"choices": None, "error": None},
        {"choices": [None, {"delta": None, "finish_reason": None}]},
        chunk("b", "stop", error=False),
        {"choices": None, "usage": USAGE, "error": {}},
    ),
    "an event that is null": events(A, None, B),
    "no empty lines": AB.replace(b"\n\n", b"\n"),
    "a byte order mark": b"\xef\xbb\xbf" + AB,
    "comments, names, ids": b": wait\n\nevent: x\nid: 1\nretry: 3\n" + AB,
    "no [DONE]": events(A, B, end=""),
    "no line end after the last": events(A, B, end="")[:-2],
    "no stream": json.dumps(WHOLE).encode(),
    "no stream, on several lines": b"\n" + json.dumps(WHOLE, indent=2).encode(),
    "content as parts": events(
        chunk([{"type": "text", "text": "a"}]),
        chunk([{"type": "image"}, {"type": "text", "text": "b"}], "stop"),
    ),
    "thoughts as parts": events(
        chunk([{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]), B
    ),
    "usage that is none": events(
        chunk("a", usage=[]), chunk("b", "stop", usage={"completion_tokens": "2"})
    ),
    "a finish reason that is a number": events(A, chunk("b", 1)),
}


@pytest.mark.parametrize("body", READ.values(), ids=READ)
def test_it_is_read(body):
    (record,), summary = asked(Answer(body))
    assert (record.error, record.text) == (None, "ab")
    assert record.finish_reason in ("stop", "1") and summary.num_completed == 1
    assert record.has_usage == (b"prompt_tokens" in body)
    is_stream = not body.lstrip().startswith(b"{")
    assert (record.ttft_seconds is not None) == is_stream == (not summary.num_at_once)
    assert any("at once, not as a stream" in line for line in notes(summary)) == (not is_stream)


def call(name: str | None, arguments: object) -> dict:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [None, {"function": function}, {"function": None}]}


OTHER_TOKENS = {  # deltas of vLLM, whose thoughts have one name or both, and calls of OpenAI
    "abc": [
        {"reasoning": "a"},
        {"reasoning_content": "b"},
        {"reasoning_content": "c", "reasoning": "c"},
    ],
    "f{}no": [call("f", ""), call(None, "{}"), {"tool_calls": None, "refusal": "no"}],
    'f{"a": 1}': [call("f", {"a": 1})],
}


@pytest.mark.parametrize(("text", "deltas"), OTHER_TOKENS.items(), ids=OTHER_TOKENS)
def test_thoughts_and_calls_are_tokens(text, deltas):
    """An answer that has nothing else has a first token too, and as many as there were deltas."""
    chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    (record,), _ = asked(Answer(events(*chunks)))
    assert (record.error, record.text) == (None, text) and record.ttft_seconds is not None
    assert record.num_output_tokens == len(deltas)


def test_halves_of_characters_are_put_together_or_replaced():
    body = (
        b'data: {"choices": [{"delta": {"content": "\\ud83d"}}]}\n\ndata: {"choices": [{"delta": '
        b'{"content": "\\ude00'
    )
    (record,), _ = asked(Answer(body + b'\\ud83d"}, "finish_reason": "stop"}]}\n\n'))
    assert record.text == "\N{GRINNING FACE}\N{REPLACEMENT CHARACTER}"


NO_STREAM, REPORTED = "not a stream of completion chunks: it", "the server reported:"
NAMED = {
    "a page": (b"<html>\n<body>Log in</body>", f"{NO_STREAM} begins with '<html>"),
    "nothing": (b"", f"{NO_STREAM} is empty"),
    "JSON of something else": (b'{"hello": 1}', f"{NO_STREAM} begins with '{{\"hello\": 1}}'"),
    "broken JSON": (b'{"choices": [', "'{\"choices\": [' is none of its chunks"),
    "a list": (b"data: [1]\n\n", "'[1]' is none of its chunks"),
    "choices that are a number": (b'data: {"choices": 1}\n\n', "is none of its chunks"),
    "content that is a number": (events(chunk(7)), "is none of its chunks"),
    "too deep": (b"data: " + b"[" * 100_000 + b"\n\n", "is none of its chunks"),
    "an error": (
        events({"error": {"message": "out\nof \x1b[31mmemory"}}),
        f"{REPORTED} out of [31mmemory",
    ),
    "an error without a message": (
        events({"error": {"message": None, "code": 7}}),
        f"{REPORTED} {{'error'",
    ),
    "an error of vLLM": (b'{"object": "error", "message": "no room"}', f"{REPORTED} no room"),
    "an error beside null choices": (
        events({"choices": None, "error": "no room"}),
        f"{REPORTED} no room",
    ),
    "an end in the middle": (events(A, end=""), "the stream ended before [DONE]"),
}


@pytest.mark.parametrize(("body", "sentence"), NAMED.values(), ids=NAMED)
def test_it_is_named_in_one_sentence_and_the_run_goes_on(body, sentence):
    records, summary = asked(Answer(body), Answer(AB), num_requests=2)
    said = records[0].error
    assert sentence in said and "\n" not in said and len(said) < 400
    assert (summary.num_errors, summary.num_completed) == (1, 1)


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """Seconds that would have been waited."""
    waited = []

    async def wait(seconds):
        waited.append(seconds)

    monkeypatch.setattr(client.asyncio, "sleep", wait)
    return waited


def busy(retry_after: str | None, status: int = 429) -> Answer:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Answer(b'{"error": {"message": "the queue is full"}}', status, headers)


def test_what_comes_back_later_is_waited_for_and_counted(waits):
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=100), usegmt=True)
    (record,), summary = asked(busy("2"), busy("0", 503), busy(date), busy(past), Answer(AB))
    assert (record.error, record.text) == (None, "ab")
    assert record.num_refusals == summary.num_refusals == 4
    assert waits[0] == 2 and waits[1] == waits[3] == client.LEAST_PAUSE_SECONDS
    assert 0 < waits[2] <= 100
    assert any("4 times to come back later" in line for line in notes(summary))


@pytest.mark.parametrize("retry_after", [None, "soon", "nan", "inf", "", "Mon, 99 Foo 2026"])
def test_without_a_time_it_is_a_failure(waits, retry_after):
    (record,), _ = asked(busy(retry_after))
    assert "429 the queue is full" in record.error and not waits and not record.num_refusals


def test_a_time_after_the_timeout_is_not_waited_for(waits):
    (record,), _ = asked(busy("3600"), timeout_seconds=30)
    assert (
        record.error
        == "429 the queue is full; it says to come back after 3600 s, which is past the timeout"
    )
    assert not waits


def test_other_errors_are_not_waited_for(waits):
    (record,), _ = asked(busy("1", 400))
    assert "400 the queue is full" in record.error and not waits
    (record,), _ = asked(Answer(b"", 307, {"Location": "/elsewhere"}))
    assert record.error == "HTTPStatusError: 307 Temporary Redirect"


@pytest.mark.parametrize("said", [None, "{}", '{"data": null}', "[]", "<html>", '{"data": []}'])
def test_a_server_that_lists_no_models_has_the_one_that_is_named(said):
    with scripted(said={} if said is None else {"/v1/models": said}) as server:
        assert find_model(server.url, "own") == "own"
        with pytest.raises(ValueError, match="name the model with --model"):
            find_model(server.url)


@pytest.mark.parametrize(
    "text", ["null", "[]", "{}", "1", "smartspec_draft_tokens_total NaN\n", "a b c\x00"]
)
def test_other_servers_have_no_counters(text):
    names = ("draft_tokens", "verified_tokens", "accepted_tokens", "decode_rows")
    metrics = "".join(f"smartspec_{name}_total NaN\n" for name in names) + text
    with scripted(said={"/metrics": metrics, "/v1/speculation": text}) as server:
        assert read_counters(server.url) is None and read_policy(server.url) is None
    assert parse_counters(text) is None


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_parts_of_a_body_are_cut_anywhere(size, line_end):
    chunks = [chunk("\N{GRINNING FACE}"), chunk("b", "stop")]
    body = (events(chunks[0], end="") + over_lines(chunks[1])).replace(b"\n", line_end)
    reader, found = EventReader(), []
    for begin in range(0, len(body), size):
        found += reader.feed(body[begin : begin + size])
    assert [json.loads(event) for event in (*found, *reader.end())] == chunks
