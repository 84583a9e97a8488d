"""What does a step cost on the embedded engine, and where does its time go?

    OMP_NUM_THREADS=1 python benchmarks/step.py parts --concurrency 16 --policies off,fixed:3,goodput
    OMP_NUM_THREADS=1 python benchmarks/step.py controller
    python benchmarks/step.py passes --rows 1,2,4,8,16,64
    python benchmarks/step.py passes --model FOLDER --dtypes float32,auto,bfloat16
    OMP_NUM_THREADS=2 python benchmarks/step.py roofline --rows 1,2,4,8,16,32
    python benchmarks/step.py linears --model smollm2-135m-instruct --rows 1,2,4,8,16,32,64,128,512
    python benchmarks/step.py blocks --types BF16,Q4_1,Q4_K --rows 1,4,16,64,512

What is compared takes turns in one process, so that all see the same machine.
"""  # noqa: E501

from pathlib import Path
from typing import Annotated

import typer
from lib.commands import application, run

from smartspec.engine.models.default_model import DEFAULT_MODEL

AS_SERVED = "As in `smartspec serve`."
app = application(__doc__)


@app.command()
def parts(
    concurrency: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 16,
    policies: Annotated[
        str, typer.Option(help="Policies, separated by commas.")
    ] = "off,fixed:3,goodput",
    drafter: Annotated[str, typer.Option(help=AS_SERVED)] = "prompt-lookup,recycling",
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL file (default: the package's own).")
    ] = None,
    steps: Annotated[int, typer.Option(min=10, help="Steps that count, per policy.")] = 300,
    max_tokens: Annotated[int, typer.Option(min=1)] = 64,
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.0,
    quantization: Annotated[str, typer.Option(help=AS_SERVED)] = "auto",
) -> None:
    """The host's time of a step, part by part, on the live engine.

    One engine per policy in this process, no HTTP; they take turns step by step. A request that
    ends is replaced by the next prompt. Steps without prefill count, after the first few.
    Milliseconds of CPU time of the engine's thread, so that other programs do not count: the mean
    over all steps (learning is not done in every step, and drafters are not queried in every one),
    without the slowest 2 %.

    `propose` is what drafters do before the plan, `remember` what they do after the target pass.
    `host` is all of the step that is neither a pass of the target nor sampling, without text for
    clients. `none drafted` is the median of that in the steps without a draft. `queried` is the
    share of steps that look for drafts.
    """
    from lib import step_time

    step_time.compare(
        concurrency, policies, drafter, prompts, steps, max_tokens, temperature, quantization
    )


@app.command()
def controller() -> None:
    """The controller: one planning call, and all it does in a step.

    First a planning call for 32 and 256 requests of up to 8 draft tokens: with model-free drafts
    (there is one depth) and with a draft model (depths are compared). Then all that a policy's
    controller does in a step (checks, estimates, plan, stop rule, verification, learning): the
    median of 400 steps in steady state in the simulator.
    """
    from lib import controller_time

    controller_time.report()


@app.command()
def passes(
    model: Annotated[str, typer.Option(help=AS_SERVED)] = DEFAULT_MODEL,
    dtypes: Annotated[
        str, typer.Option(help="As in `smartspec serve`; several are compared.")
    ] = "auto",
    rows: Annotated[
        str, typer.Option(help="Requests with one new token each, separated by commas.")
    ] = "1,2,4,8,16,32",
    prefill: Annotated[
        str, typer.Option(help="Lengths of one prompt, separated by commas.")
    ] = "128,512",
    verify: Annotated[
        str, typer.Option(help="Tokens of one request that verifies a draft.")
    ] = "2,6,12",
    repetitions: Annotated[int, typer.Option(min=1)] = 15,
    head: Annotated[
        str | None, typer.Option(help="A head's folder, or head for the model's own.")
    ] = None,
) -> None:
    """One pass of a model by rows: layers in one call, layer by layer, operator by operator.

    Least milliseconds of each. `weights` is what reading every weight once takes at the bandwidth
    measured here. `cpu` is time of all threads, which says more than the clock while other
    processes have the cores. With --head also one draft pass of a head after the text and after its
    own draft, and the latter's share of the target's pass.
    """
    from lib import pass_time

    pass_time.compare(model, dtypes, rows, prefill, verify, repetitions, head)


@app.command()
def roofline(
    model: Annotated[str, typer.Option(help=AS_SERVED)] = DEFAULT_MODEL,
    rows: Annotated[
        str, typer.Option(help="Scored tokens of one request, separated by commas.")
    ] = "1,2,4,8,16",
    prefill: Annotated[
        str, typer.Option(help="Lengths of one prompt, separated by commas.")
    ] = "128,512",
    repetitions: Annotated[int, typer.Option(min=1)] = 15,
) -> None:
    """A pass by rows over what the machine can do: bytes read, and products of weights and
    activations.

    Bytes are those of the weights, each read once, and of the keys and values. Products are those
    of the linears. The machine's own figures are measured in the same run: reading memory, and
    torch's linears of large matrices in 8 bits and in fp32. `least` is what the slower of both
    takes if nothing else is done, with the int8 products.
    """
    from lib import roofline

    roofline.report(model, rows, prefill, repetitions)


@app.command()
def linears(
    model: Annotated[
        str, typer.Option(help="A model whose weights are in blocks.")
    ] = DEFAULT_MODEL,
    quantization: Annotated[str, typer.Option(help=AS_SERVED)] = "auto",
    dtype: Annotated[str, typer.Option(help=AS_SERVED)] = "auto",
    rows: Annotated[
        str, typer.Option(help="Numbers of rows, separated by commas.")
    ] = "1,2,4,8,16,32,64,128,512",
) -> None:
    """All linears of a pass by rows: weights as they are served against the same in fp32.

    Least milliseconds of several repetitions. The head sees all rows, as in verification. Bytes are
    those of the weights in blocks: GB/s says how near to memory's speed that pass is.
    """
    from lib import linears

    linears.of_model(model, quantization, dtype, [int(count) for count in rows.split(",")])


@app.command()
def blocks(
    types: Annotated[
        str | None,
        typer.Option(help="Types of blocks, separated by commas; rounded for BF16's other form."),
    ] = None,
    rows: Annotated[
        str, typer.Option(help="Numbers of rows, separated by commas.")
    ] = "1,2,4,8,16,32,64,128,256,512",
) -> None:
    """The linears of eight layers by type of block and by rows, against the same in fp32.

    90 million random weights in layers of 1024 inputs, so that every type fits; least milliseconds.
    `roofline` is what reading a type's weights takes at the bandwidth measured here. "rounded" is
    BF16 with inputs rounded to bfloat16, as after --dtype bfloat16.
    """
    from lib import linears

    linears.of_types(types, [int(count) for count in rows.split(",")])


if __name__ == "__main__":
    run(app)
