"""`python -m lab.worlds`: the mean latency of policies on several engines behind one router."""

from dataclasses import replace
from typing import Annotated

import typer

from lab.worlds.fleet import serve_together
from smartspec.cli.main import run
from smartspec.cli.policy_list import policy_list
from smartspec.sim.scenario import Scenario
from smartspec.sim.simulation import make_engine, make_traffic
from smartspec.workload.summary import summarize

app = typer.Typer()


@app.command()
def main(
    replicas: Annotated[int, typer.Option(min=1, help="Engines.")] = 2,
    rate: Annotated[float, typer.Option(help="Poisson arrivals per second, of all.")] = 20.0,
    num_requests: Annotated[int, typer.Option(min=1, help="Requests.")] = 200,
    policy: Annotated[str, typer.Option(help="Policies (a,b).")] = "off,fixed:4,goodput",
) -> None:
    """Print the mean latency of each policy on so many engines behind one router."""
    base = Scenario(rate=rate, num_requests=num_requests)
    for name in policy_list(policy):
        scenario = replace(base, policy=name)
        engines = [make_engine(scenario) for _ in range(replicas)]
        summary = summarize(serve_together(engines, make_traffic(scenario)))
        print(f"{name:12} {summary.end_to_end_seconds.mean:8.3f} s")


if __name__ == "__main__":
    run(app)
