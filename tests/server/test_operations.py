"""What an operator sees of a server: logs, counts of answers, metrics under vLLM's names."""

import json
import logging
import re
from pathlib import Path

import pytest
from fake_core import make_core
from fake_server import MODEL, running_server, whole_and_streamed
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from test_config_file import options

from smartspec.cli.config_file import read_classes
from smartspec.cli.logs import MAX_TRACEBACKS, TRACEBACKS_SECONDS, FewTracebacks, JsonLines
from smartspec.server.http.access_log import BAD_LINES_PER_SECOND, AccessLog
from smartspec.server.live.metrics import ServerMetrics
from smartspec.server.openai.generation_body import SpeculationBody
from smartspec.server.openai.workload_classes import WorkloadClasses

ROOT = Path(__file__).parents[2]


# What vLLM's own Grafana dashboards query (examples/observability of its repository).
VLLM_HISTOGRAMS = (
    "e2e_request_latency_seconds",
    "time_to_first_token_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
)


def test_answers_are_counted_by_status(own_server):
    own_server.complete(prompt="One two")
    for _ in range(3):
        own_server.complete(promt="One two")
    own_server.http.get("/nowhere")
    found = own_server.metrics()
    counted = [found[f'smartspec_http_responses_total{{status="{s}"}}'] for s in (200, 400, 404)]
    assert counted == [1, 3, 1]


def test_vllm_names_tell_the_same(tokenizer):
    with running_server(tokenizer, draft_length=6) as server:
        server.complete(prompt="One two three four five six seven eight", max_tokens=9)
        found = server.metrics()

    def vllm(name: str, **labels: str) -> float:
        both = labels | {"engine": "0", "model_name": MODEL}
        written = ",".join(f'{key}="{value}"' for key, value in sorted(both.items()))
        return found[f"vllm:{name}{{{written}}}"]

    assert vllm("generation_tokens_total") == found["smartspec_generation_tokens_total"] == 9
    assert vllm("spec_decode_num_accepted_tokens_total") == 6
    assert vllm("spec_decode_num_drafts_total") == 1
    assert vllm("request_success_total", finished_reason="stop") == 1
    for position in "012345":
        assert vllm("spec_decode_num_accepted_tokens_per_pos_total", position=position) == 1
    for name in VLLM_HISTOGRAMS:
        assert vllm(f"{name}_count") == vllm(f"{name}_bucket", le="+Inf") == 1
    assert found["smartspec_chosen_length_sum"] == found["smartspec_verified_tokens_total"] == 6
    assert found["smartspec_chosen_length_count"] == found["smartspec_decode_rows_total"] == 2
    assert found["smartspec_step_seconds_count"] == 3
    assert found["smartspec_predicted_step_seconds_count"] > 0
    for name in ("requests_running", "requests_waiting", "kv_use_ratio"):
        assert found[f"smartspec_{name}"] == 0
    # A gap between two steps, of which the second of the three brought seven tokens.
    assert vllm("inter_token_latency_seconds_count") == 2
    queue, prefill, decode, e2e = (
        found[f"smartspec_request_{part}_seconds_sum"]
        for part in ("queue", "prefill", "decode", "e2e")
    )
    assert min(queue, prefill, decode) >= 0 and queue + prefill + decode == pytest.approx(e2e)


def test_a_line_of_one_printable_word_a_field_for_every_request(tokenizer, caplog):
    """What the connection lets through of a proxy's address: no line feeds, but C1 controls, that
    begin a line or a terminal's command."""
    forged = b"1.2.3.4 GET /forged 200 0.1 ms"
    given = [b"\x9b31mred", b"one\x85two", "é".encode(), forged, b"x" * 9999, b"203.0.113.7, ::1"]
    with (
        caplog.at_level(logging.INFO, "smartspec.access"),
        running_server(tokenizer, access_log=True) as server,
    ):
        server.complete(prompt="One two")
        for raw in given:
            server.http.get("/health", headers=[(b"X-Forwarded-For", raw)])
        server.http.get("/a%20200%201.0%20ms%1b[31m%0a127.0.0.1")
    lines = [record for record in caplog.records if record.name == "smartspec.access"]
    assert len(lines) == len(given) + 2
    for line in lines:
        assert line.message.isascii() and line.message.isprintable()
        assert len(line.message.split(" ")) == 6 and len(line.message) < 1000
        JsonLines().format(line)
    whole, *_, last, missing = lines
    assert re.fullmatch(r"127\.0\.0\.1 POST /v1/completions 200 \d+\.\d ms", whole.message)
    assert last.message.startswith("203.0.113.7 GET /health 200")
    assert missing.fields["path"] == r"/a\x20200\x201.0\x20ms\x1b[31m\n127.0.0.1"
    assert missing.fields["status"] == 404


def test_no_lines_unless_requested(server, caplog):
    with caplog.at_level(logging.INFO):
        server.complete(prompt="One two")
    assert not [record for record in caplog.records if record.name == "smartspec.access"]


def test_bad_requests_do_not_fill_the_log(caplog):
    now, counted = 100.0, []
    log = AccessLog(None, counted.append, log=True, clock=lambda: now)
    scope = {"client": None, "method": "GET", "path": "/"}
    with caplog.at_level(logging.INFO):
        for _ in range(3 * BAD_LINES_PER_SECOND):
            if log._has_room(400):
                log._write(scope, 400, 0.001)
        assert len(caplog.records) == BAD_LINES_PER_SECOND and log._has_room(200)
        now = 101.0
        assert log._has_room(400)
        log._write(scope, 400, 0.001)
    assert caplog.records[-1].fields["left_out"] == 2 * BAD_LINES_PER_SECOND


def test_json_lines():
    record = logging.LogRecord(
        "smartspec.access", logging.INFO, __file__, 1, 'a "%s"\n', ("b",), None
    )
    record.fields = {"status": 400}
    line = JsonLines().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "INFO",
        "logger": "smartspec.access",
        "message": 'a "b"\n',
        "status": 400,
    }
    try:
        raise RuntimeError("why")
    except RuntimeError as error:
        record.exc_info = (RuntimeError, error, error.__traceback__)
    assert "RuntimeError: why" in json.loads(JsonLines().format(record))["exception"]


def test_a_client_that_finds_what_fails_does_not_fill_the_log():
    few, left_in = FewTracebacks(), []
    for number in range(3 * MAX_TRACEBACKS):
        record = logging.LogRecord(
            "uvicorn.error", logging.ERROR, __file__, 1, "failed", (), (ValueError, None, None)
        )
        record.created = 1000.0 + number * TRACEBACKS_SECONDS / (2 * MAX_TRACEBACKS)
        left_in += [record.getMessage() for _ in range(few.filter(record))]
    said = ["failed"] * (MAX_TRACEBACKS - 1) + [
        "failed (the next tracebacks of this minute are left out)"
    ]
    assert left_in == said * 2
    assert few.filter(logging.LogRecord("any", logging.ERROR, __file__, 1, "a line", (), None))


def test_a_request_of_a_class_has_its_settings(tokenizer, monkeypatch):
    classes = WorkloadClasses({"bulk": {"max_draft_tokens": 0}})
    with running_server(tokenizer, classes=classes) as server:
        seen = server.recorded(monkeypatch)
        for name in ("bulk", "chat"):
            server.complete(prompt="One two", speculation={"workload_class": name})
    assert [request.speculation.max_draft_tokens for request in seen] == [0, None]


def test_the_dashboard_shows_metrics_that_exist():
    dashboard = (ROOT / "deploy" / "grafana.json").read_text()
    metrics = set(re.findall(r"smartspec_[a-z0-9_]+", dashboard))
    families = list(ServerMetrics(make_core(2)).registry.collect())
    known = {
        family.name + suffix
        for family in families
        for suffix in ("", "_total", "_bucket", "_sum", "_count")
    }
    assert len(metrics) > 10 and metrics <= known


@pytest.mark.parametrize("name", ["grafana.json", "grafana-vllm.json", "grafana-observe.json"])
def test_every_panel_of_a_dashboard_says_what_it_shows(name):
    panels = json.loads((ROOT / "deploy" / name).read_text())["panels"]
    for panel in panels:
        assert panel["title"] and panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] and all(
            target["legendFormat"] for target in panel["targets"]
        )
    assert len({panel["title"] for panel in panels}) == len(panels)


def test_the_example_configuration_is_accepted():
    path = ROOT / "deploy" / "server.toml"
    assert options("--config", str(path))["access_log"]
    assert read_classes(path).fill(SpeculationBody(workload_class="batch")).max_draft_tokens == 4


@whole_and_streamed
def test_a_generation_is_described_on_the_span_of_its_request(tokenizer, monkeypatch, stream):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    trace_id, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    body = {"prompt": ["One two three", "One two"], "max_tokens": 2, "n": 2, "stream": stream}
    with running_server(tokenizer) as server:
        server.complete(headers={"traceparent": f"00-{trace_id}-{caller}-01"}, **body)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    request = spans["POST /v1/completions"]
    assert (request.context.trace_id, request.parent.span_id) == (
        int(trace_id, 16),
        int(caller, 16),
    )
    told = (request if stream else spans["fastapi.endpoint"]).attributes
    assert told["gen_ai.request.model"] == MODEL
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (5, 8)
    assert told["gen_ai.response.finish_reasons"] == ("length",) * 4
    assert told["gen_ai.response.time_to_first_chunk"] > 0
