"""The pages: links and paths lead somewhere, commands exist with their options, tables name what
there is."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from json_files import read_json

from lab.train.kinds import KINDS
from smartspec.cli.main import _build_app
from smartspec.control import Controller, CostCurve, DrafterSpec, LatencyModel
from smartspec.core.engine_core import EngineCore
from smartspec.core.policy_names import POLICIES, published_policies
from smartspec.drafters.drafter_names import MODEL_FREE_DRAFTERS
from smartspec.server.live.metrics import ServerMetrics
from smartspec.server.openai.chat_body import ChatBody
from smartspec.server.openai.completion_body import CompletionBody
from smartspec.server.openai.generation_body import SpeculationBody

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "smartspec"
DOCS = ROOT / "docs"
BENCHMARKS = ROOT / "benchmarks"
PAGES = [
    *(
        ROOT / f"{name}.md"
        for name in ("README", "CONTRIBUTING", "SECURITY", "benchmarks/README", "lab/README")
    ),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "lab" / "results").glob("*.md")),
]
GENERATED = [DOCS / "results/ablation.md", ROOT / "lab/results/traces.md"]
WRITTEN = [page for page in [*PAGES, ROOT / "CHANGELOG.md"] if page not in GENERATED]
TUTORIAL = DOCS / "extend.md"  # mostly code
RESULTS = [page for page in WRITTEN if page.parent.name == "results"]
GUIDES = [page for page in WRITTEN if page.parent == DOCS and page != TUTORIAL]
MAX_README_LINES, MAX_GUIDE_LINES, MAX_LINE = 90, 125, 100
# All that an operator of vLLM needs, in one place; the example in numbers.
MAX_LINES = {"vllm.md": 250, "vllm-how.md": 232, "observe.md": 165, "controller.md": 205}
COMMANDS = typer.main.get_command(_build_app()).commands
PARTS_OF_A_STEP = ("self.scheduler", "self.executor", "self.controller")
CLASSES_OF_A_STEP = ("core.scheduler.", "engine.runtime.executor.", "control.controller.")
START = r"(?:\S+=\S+ )*(?:\S*python3? )?"  # of a command
OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(text: str) -> list[str]:
    """Targets of markdown links and images that are not on the web."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]


def anchors(text: str) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for link in links(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    return broken


def named_files(text: str) -> list[str]:
    """Repository files in the text, in backticks and in commands: a folder, and a suffix that ours
    have."""
    text = re.sub(r"\]\([^)]*\)", "", text)
    return re.findall(
        r"(?<![\w~/.-])((?:[\w.-]+/)+[\w-]+\.(?:py|c|h|md|png|toml|yml|json))\b", text
    )


def missing_files(text: str) -> list[str]:
    """Files that a clone lacks. What stands in build/ is made by the commands that name it, and
    never committed."""
    names = [name for name in named_files(text) if not name.startswith("build/")]
    return [name for name in names if not any((root / name).exists() for root in (ROOT, SOURCE))]


def commands(text: str) -> list[str]:
    """Whole commands: lines of indented blocks, continued by a backslash, and what stands in
    backticks."""
    lines = re.sub(r" *\\\n\s*", " ", text).splitlines()
    return [line.strip() for line in lines if line.startswith("    ")] + re.findall(
        r"`([^`\n]+)`", text
    )


def command_in(module: str, path: Path):
    """The command of a file of benchmarks/ or lab/; None where there is no such file."""
    if not path.exists():
        return None
    found = importlib.import_module(module)
    return typer.main.get_command(found.app) if hasattr(found, "app") else found.make_parser()


def subcommand(command, name: str):
    """The command itself where it has none."""
    return command.commands.get(name) if hasattr(command, "commands") else command


def options_of(command) -> set[str]:
    if not hasattr(command, "params"):  # argparse's
        return {*command._option_string_actions}
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts)}


def bad_command(command: str) -> str | None:
    """What is wrong with a `smartspec` or benchmark command; None for others and for sound ones."""
    if found := re.match(START + r"(?:\S*/)?smartspec ([a-z-]+)(?: +([a-z]+))?", command):
        name = " ".join(filter(None, found.groups()))
        named = COMMANDS.get(found[1])
        named = subcommand(named, found[2]) if found[2] else named
        if named and named.context_settings.get("ignore_unknown_options"):
            return None  # tests/vllm_real has vLLM's own parser read them
    elif found := re.match(START + r"-m (lab\.\w+)", command):
        name = found[1]
        named = command_in(f"{name}.__main__", ROOT / name.replace(".", "/") / "__main__.py")
    elif found := re.match(START + r"benchmarks/(\w+)\.py(?: +([a-z][a-z-]*))?", command):
        if command == f"benchmarks/{found[1]}.py":
            return None  # its name alone, for all of it
        name = found.group()
        named = subcommand(command_in(found[1], BENCHMARKS / f"{found[1]}.py"), found[2])
    else:
        return None
    if named is None:
        return f"no command {name}"
    unknown = set(OPTION.findall(command.partition("#")[0])) - options_of(named) - {"--help"}
    return f"no option {', '.join(sorted(unknown))}" if unknown else None


def long_lines(text: str) -> list[str]:
    """Lines of prose that are too long, unless a single word or link is."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not re.match(r"    |\||!\[", line)]
    return [line for line in lines if len(line) > MAX_LINE and len(line.split()) > 2]


def test_what_is_broken_is_seen():
    page = DOCS / "x.md"
    assert broken_links(
        page, "[a](gone.md) [b](methods.md) [c](methods.md#no-such) [d](https://x.y/z)"
    ) == [
        "gone.md",
        "methods.md#no-such",
    ]
    assert missing_files("`core/gone.py`, `core/batch.py`, `docs/gone.md`, `numpy`") == [
        "core/gone.py",
        "docs/gone.md",
    ]
    assert not missing_files("python benchmarks/peers.py --file build/made.json")
    for command, problem in {
        "smartspec bake --port 1": "no command bake",
        "A=1 .venv/bin/smartspec serve --prot 1": "no option --prot",
        "python benchmarks/peers.py throughput --severs off": "no option --severs",
        "python benchmarks/simulator.py --rate 1": "no option --rate",
        "python benchmarks/peers.py --servers off": "no command python benchmarks/peers.py",
        "python benchmarks/peers.py speed": "no command python benchmarks/peers.py speed",
        "python benchmarks/gone.py": "no command python benchmarks/gone.py",
        "python3 benchmarks/gpu_cells.py --gone 1": "no option --gone",
        "python -m lab.gone": "no command lab.gone",
        "python -m lab.paper --life": "no option --life",
        "benchmarks/step.py part": "no command benchmarks/step.py part",
        "smartspec vllm bake": "no command vllm bake",
        "A=1 .venv/bin/python benchmarks/peers.py throughput --servers off": None,
        "python -m lab.paper --live": None,
        "benchmarks/step.py parts": None,
        "benchmarks/step.py": None,
        "smartspec serve --port 1": None,
        "smartspec vllm serve MODEL --port 1": None,
        "ls --all": None,
    }.items():
        assert bad_command(command) == problem
    assert long_lines("| " + 60 * "a b " + "\n    " + 60 * "a b " + "\n" + 30 * "a b ") == [
        30 * "a b "
    ]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page):
    assert not broken_links(page, page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_and_commands_exist(page):
    text = page.read_text()
    assert not missing_files(text)
    bad = {command: problem for command in commands(text) if (problem := bad_command(command))}
    assert not bad


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


@pytest.mark.parametrize("page", GUIDES, ids=page_id)
def test_a_guide_is_short(page):
    assert len(page.read_text().splitlines()) <= MAX_LINES.get(page.name, MAX_GUIDE_LINES)


@pytest.mark.parametrize("page", WRITTEN, ids=page_id)
def test_a_page_is_wrapped(page):
    assert not long_lines(page.read_text())


def test_the_page_of_models_is_made_of_its_file():
    module = importlib.import_module("lib.models_page")
    data = read_json(DOCS / module.FILE)
    assert (DOCS / "models.md").read_text() == module.page_of(data)


@pytest.mark.parametrize("page", RESULTS, ids=page_id)
def test_figures_have_a_commit_a_date_a_machine_and_commands(page):
    head, *sections = page.read_text().split("\n## ")
    words = head.lower()
    assert re.search(r"\b[0-9a-f]{7}\b", words) and re.search(r"\b20\d\d-\d\d-\d\d\b", words)
    assert "commit" in words and "machine" in words
    has_command = re.compile(r"^    (?:\S+=\S+ )*\S*(?:python|smartspec|taskset) ", re.MULTILINE)
    assert has_command.search(head) or all(has_command.search(section) for section in sections)


def test_the_readmes_plot_and_rows_are_those_of_the_report(tmp_path):
    """Worst and best cell against each server, as `smartspec report` found them."""
    report = read_json(DOCS / "report" / "summary.json")
    readme = (DOCS.parent / "README.md").read_text()
    for other in ("off", "fixed:3"):
        found = [(each["ratio"], each) for each in report["speed_ups"] if each["other"] == other]
        (row,) = re.findall(rf"^\| `{other}`.*\(docs/report/.*$", readme, re.MULTILINE)
        for ratio, cell in (min(found, key=itemgetter(0)), max(found, key=itemgetter(0))):
            assert f"{ratio:.2f}" in row and f"{cell['workload']}, {cell['load']}" in row
    rows = [
        f"| {e['workload']} | {e['load']} | {e['ratio']:.2f} "
        f"({e['interval'][0]:.2f} - {e['interval'][1]:.2f}) | {e['verdict']} |"
        for e in sorted(report["speed_ups"], key=itemgetter("ratio"))
        if e["other"] == "off"
    ]
    assert "\n".join(rows) in (DOCS / "report" / "README.md").read_text()
    plot = tmp_path / "plot.png"
    command = [sys.executable, DOCS / "report" / "plot_speed_ups.py", "--output", plot]
    subprocess.run(command, check=True, timeout=120)
    assert plot.read_bytes().startswith(b"\x89PNG")


def first_cells(page: str, heading: str) -> set[str]:
    """What stands in backticks in the first column of the table after a heading."""
    table = (ROOT / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)}


def test_the_table_of_options_is_complete():
    options = {p.opts[0]: p.default for p in COMMANDS["serve"].params}
    assert first_cells("docs/operating.md", "Options") == set(options) - {"--help"}
    rows = (DOCS / "operating.md").read_text()
    for option, default in options.items():
        if default not in (None, False):
            assert f"| `{option}` | `{default}` |" in rows, (
                f"{option} has another default: {default}"
            )


def test_the_table_of_metrics_is_complete():
    blocks = SimpleNamespace(num_used_blocks=0, num_blocks=1)
    scheduler = SimpleNamespace(blocks=blocks, num_preemptions=0)
    core = SimpleNamespace(num_running=0, num_waiting=0, scheduler=scheduler, controller=None)
    families = ServerMetrics(core).registry.collect()
    names = {family.name + "_total" * (family.type == "counter") for family in families}
    assert first_cells("docs/monitoring.md", "Metrics") == names


def test_every_field_of_the_controllers_state_is_explained():
    text = (DOCS / "monitoring.md").read_text()
    latency = LatencyModel(CostCurve.linear(0.04, 0.002))
    state = Controller("goodput", 4, latency, drafters=(DrafterSpec("lookup"),)).state()
    unexplained = [name for name in (*state, *state["policy_state"]) if f"`{name}`" not in text]
    assert not unexplained


@pytest.mark.parametrize("body", [CompletionBody, ChatBody, SpeculationBody])
def test_every_field_of_a_request_is_in_the_api_page(body):
    text = (DOCS / "http-api.md").read_text()
    assert not [name for name in body.model_fields if f"`{name}`" not in text]


def walk_of_a_request() -> list[str]:
    """The dotted names of the newcomer's walk, in order."""
    text = (DOCS / "architecture.md").read_text()
    section = text.partition("\n## One request, from HTTP to emitted token\n")[2]
    return re.findall(r"`((?:server|engine|core|control)\.[\w.]+)`", section.partition("\n## ")[0])


def test_the_walk_of_a_request_names_what_exists():
    names = walk_of_a_request()
    assert len(names) > 20
    for name in names:
        assert callable(pkgutil.resolve_name(f"smartspec.{name}")), name


def test_the_walk_of_a_request_has_the_order_of_a_step():
    tree = ast.parse(textwrap.dedent(inspect.getsource(EngineCore._run)))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) in PARTS_OF_A_STEP
    ]
    # A call that is an argument of another ends, and is made, before it.
    calls.sort(key=lambda call: (call.end_lineno, call.end_col_offset))
    in_code = [call.func.attr for call in calls]
    walk = [name for name in walk_of_a_request() if name.startswith(CLASSES_OF_A_STEP)]
    in_page = [name.rpartition(".")[2] for name in walk]
    in_page = [name for name in in_page if name in in_code]
    assert len(in_page) >= 8
    assert in_page == [name for name in in_code if name in in_page]


def test_every_policy_is_in_the_table_of_the_field_and_every_published_one_has_its_idea():
    ours = {"goodput", "off"}
    named = {name.partition(":")[0] for name in first_cells("lab/README.md", "The field")}
    assert named == {
        *POLICIES,
        *published_policies(),
        "fixed",
        "uniform",
        "perfect-estimates",
        "perfect-outcomes",
    }
    policies = (DOCS / "methods.md").read_text().partition("\n## Ways to draft\n")[0]
    ideas = {
        name
        for names in re.findall(r"^\* \*\*([^*]+?)\.?\*\*", policies, re.MULTILINE)
        for name in names.split(", ")
    }
    assert {*POLICIES, *published_policies()} - ours == ideas


def test_every_drafter_is_in_the_table_of_drafters():
    named = {name.partition(":")[0] for name in first_cells("lab/README.md", "The drafters")}
    assert named == {
        *MODEL_FREE_DRAFTERS,
        *KINDS,
        "eagle",
        "lab.drafters.ngram_tree",
        "lab.drafters.self_draft",
        "lab.heads.exits",
        "MODEL",
    }
