"""How good are the drafters: how much of their drafts is right, and what do the passes of heads
cost?

    python benchmarks/drafters.py tokens --drafters prompt-lookup,recycling,datastore,ngram-tree --nodes 5,16
    python benchmarks/drafters.py tokens --drafters ngram-tree --nodes 16 --datastore none
    python benchmarks/drafters.py tokens --drafters recycling,ngram-tree,head,ngram-tree+head --trees --nodes 16
    python benchmarks/drafters.py tokens --temperature 0.8 --prompts FOLDER --per-task 8
    python benchmarks/drafters.py passes --depth 5

Both run the live engine in this process.
"""  # noqa: E501

from pathlib import Path
from typing import Annotated

import typer
from lib.commands import MIXED, PromptsPath, application, prompts_by_task, run

from smartspec.bench.report import write_json
from smartspec.core.sampling_params import SamplingParams
from smartspec.drafters.drafter_names import READERS
from smartspec.engine.models.default_model import DEFAULT_MODEL
from smartspec.engine.runtime.config import EngineConfig

MAX_MODEL_LEN = 2048
app = application(__doc__)


@app.command()
def tokens(
    drafters: Annotated[str, typer.Option(help="Names as in --drafter, separated by commas.")] = (
        "prompt-lookup,recycling,datastore,ngram-tree"
    ),
    nodes: Annotated[str, typer.Option(help="Nodes of every draft, separated by commas.")] = "5,16",
    prompts: PromptsPath = None,
    per_task: Annotated[int, typer.Option(help="Prompts of each task.", min=1)] = 4,
    max_tokens: Annotated[int, typer.Option(help="New tokens of each prompt.", min=2)] = 96,
    temperature: Annotated[float, typer.Option(help="0: greedy.", min=0.0)] = 0.0,
    model: Annotated[str, typer.Option(help="Target.")] = DEFAULT_MODEL,
    quantization: Annotated[
        str, typer.Option(help="none: heads keep fp32, see `smartspec serve`.")
    ] = "auto",
    datastore: Annotated[
        str | None, typer.Option(help="Folder, or none (default: the model's own).")
    ] = None,
    trees: Annotated[
        bool, typer.Option(help="Heads draft trees: the best nodes of up to 8 passes.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Emitted tokens per step of each drafter, by task; time does not count.

    Every draft has the given number of nodes, however many of them are right: a chain of 5 costs a
    target pass over 6 tokens, a tree of 16 one over 17. One request runs at a time: what a drafter
    remembers is of the requests before. Names are those of `smartspec serve --drafter`. Heads draft
    chains or, with --trees, EAGLE-2's trees. With ngram-tree+ before the name, these trees take in
    those of ngram-tree.
    """
    from lib import drafter_tokens

    tasks = {
        task: some[:per_task] for task, some in prompts_by_task(prompts).items() if task != MIXED
    }
    limits = {"max_batch": 1, "max_model_len": MAX_MODEL_LEN}
    config = EngineConfig(
        model=model, quantization=quantization, datastore=datastore, drafters=READERS, **limits
    )
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    sizes = [int(size) for size in nodes.split(",")]
    cells = drafter_tokens.compare(config, drafters.split(","), sizes, params, tasks, trees=trees)
    drafter_tokens.print_table(cells, tasks)
    if output is not None:
        settings = {
            "temperature": temperature,
            "per_task": per_task,
            "trees": trees,
            "datastore": datastore,
        }
        write_json(output, settings | {"tokens_per_step": cells})


@app.command()
def passes(
    model: Annotated[str, typer.Option(help="The target.")] = DEFAULT_MODEL,
    depth: Annotated[int, typer.Option(help="Tokens of a draft.", min=1)] = 5,
    vocabulary: Annotated[int, typer.Option(help="Tokens that a head can draft.", min=1)] = 8192,
    repetitions: Annotated[int, typer.Option(min=1)] = 60,
) -> None:
    """Time of a draft by kind of head, beside a step of the target; acceptance does not count.

    Heads are untrained, of the shapes that `python -m lab.train` makes (EAGLE under the target's
    output embedding), and draft chains for one request. Drafts and target passes take turns. Median
    milliseconds.
    """
    from lib import draft_passes

    draft_passes.compare(model, depth, vocabulary, repetitions)


if __name__ == "__main__":
    run(app)
