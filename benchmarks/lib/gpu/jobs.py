"""What engines of one run measure, each in a process of its own."""

from lib.gpu.acceptance import StatedAcceptance
from lib.gpu.engine import LOOKUP, make_core
from lib.gpu.measuring import OFF, OURS, TABLE, Measuring
from lib.gpu.models import EAGLE3_8B, LLAMA_8B, write_config
from lib.gpu.plan import HIGH, LOW, MIXED, NONE, Plan
from lib.gpu.results import Results


def target(plan: Plan) -> str:
    return write_config(plan.folder / "models" / "llama-8b", LLAMA_8B)


def synthetic(plan: Plan, **more) -> dict:
    """Speculative configuration in which all drafts are right that are not marked as wrong."""
    rates = {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [1.0] * plan.longest,
    }
    return {"num_speculative_tokens": plan.longest} | rates | more


def eagle3(plan: Plan, **more) -> dict:
    head = write_config(plan.folder / "models" / "eagle3-8b", EAGLE3_8B, "LlamaForCausalLMEagle3")
    return synthetic(plan, method="eagle3", model=head, **more)


def stated() -> StatedAcceptance:
    acceptance = StatedAcceptance()
    acceptance.install()
    return acceptance


def run_off(results: Results, plan: Plan) -> None:
    """vLLM without speculation, with the graphs of the other engines."""
    measuring = Measuring(results, plan, make_core(results, plan, target(plan), plan.sizes()))
    measuring.warm_up()
    measuring.cells(plan.levels, (OFF,))


def run_eagle3(results: Results, plan: Plan) -> None:
    """An EAGLE-3 head with a batch-size table: vLLM's lengths and the plugin's, in one engine."""
    acceptance = stated()
    speculation = eagle3(plan, num_speculative_tokens_per_batch_size=plan.table())
    core = make_core(results, plan, target(plan), plan.sizes(), speculation, policy=OURS)
    measuring = Measuring(results, plan, core, acceptance)
    measuring.use("stock:3")
    measuring.warm_up()
    stock = tuple(f"stock:{length}" for length in (0, *plan.lengths))
    measuring.cells(plan.levels, plan.wanted(*stock, "fixed:3", OURS), MIXED)
    for level in plan.some_levels if plan.wanted(TABLE) and measuring.best else ():
        measuring.cell(level, TABLE, MIXED)
    for rates in (HIGH, LOW):
        measuring.cells(plan.some_levels, plan.wanted(*stock, OURS), rates)
    for level in plan.some_levels:
        for policy in plan.wanted("stock:1", OURS):
            measuring.cell(level, policy, HIGH, after=LOW)


def run_ngram(results: Results, plan: Plan) -> None:
    """vLLM's n-gram drafts on the GPU. First none is right: what does the search cost, beside
    `off`?"""
    acceptance = stated()
    speculation = synthetic(plan, **LOOKUP, num_speculative_tokens_per_batch_size=plan.table())
    core = make_core(results, plan, target(plan), plan.sizes(), speculation, policy=OURS)
    measuring = Measuring(results, plan, core, acceptance)
    measuring.use("stock:3")
    measuring.warm_up()
    measuring.cells(plan.levels, plan.wanted("stock:0", OFF, OURS), NONE)
    measuring.cells(plan.some_levels, plan.wanted("stock:1", "stock:3", "stock:5", OURS), MIXED)


def run_adaptive(results: Results, plan: Plan, policy: str) -> None:
    """EAGLE-3 with vLLM's adaptive verification: alone (stock), or with the plugin beside it.
    Confidences are the true rates."""
    acceptance = stated()
    acceptance.state_confidences()
    speculation = eagle3(plan, enable_adaptive_verification=True)
    ours = None if policy == "stock" else policy
    core = make_core(results, plan, target(plan), plan.ragged_sizes(), speculation, ours)
    measuring = Measuring(results, plan, core, acceptance)
    measuring.warm_up()
    measuring.cells(plan.levels, (policy,), MIXED)
    for rates in (HIGH, LOW):
        measuring.cells(plan.some_levels, (policy,), rates)
    for level in plan.some_levels:
        measuring.cell(level, policy, HIGH, after=LOW)
