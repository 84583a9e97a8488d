"""`smartspec log replay`: what other policies would have made of a recorded run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from smartspec.cli.policy_list import policy_list

if TYPE_CHECKING:
    from smartspec.sim.replay.policy_replay import ReplayTotals


def replay(
    log: Annotated[Path, Argument(help="A log that `smartspec serve --decision-log` has written.")],
    policy: Annotated[
        str, Option(help="Policies to run on it, separated by commas; module:Class too.")
    ] = "goodput",
    seed: Annotated[
        int, Option(help="Seed for draft tokens the log knows nothing about.", min=0)
    ] = 0,
) -> None:
    """Run policies on a recorded log and compare them with what was recorded and with no drafts at
    all."""
    from smartspec.control.log.recorded_log import RecordedLog
    from smartspec.sim.replay.policy_replay import replay as run_replay

    recorded_log = RecordedLog(log)
    recorded, replayed = run_replay(recorded_log, policy_list(f"off,{policy}"), seed)
    if recorded_log.notice:
        print(f"{log}: {recorded_log.notice}")
    header = recorded_log.header
    _print_table(
        f"{header.model}, at most {header.max_draft_tokens} draft tokens", recorded, replayed
    )


def _print_table(title: str, recorded: "ReplayTotals", replayed: "list[ReplayTotals]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=title,
        caption=(
            "Steps follow the recorded run: see smartspec.sim.replay.policy_replay for what that "
            "can tell."
        ),
    )
    table.add_column("policy")
    for heading in ("tokens/s", "vs recorded", "vs off", "mean k", "steps", "from the log alone"):
        table.add_column(heading, justify="right")
    off = replayed[0].tokens_per_second
    for totals in (recorded, *replayed):
        speed = totals.tokens_per_second
        table.add_row(
            f"recorded ({totals.policy})" if totals is recorded else totals.policy,
            f"{speed:.1f}",
            f"{speed / recorded.tokens_per_second:.3f}",
            f"{speed / off:.3f}" if off else "-",
            f"{totals.mean_length:.2f}",
            str(totals.num_steps),
            f"{totals.log_share:.0%}",
        )
    Console().print(table)
