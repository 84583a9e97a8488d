"""The hosts of a simulated target: plain accelerators, or a machine of the repository's lab by
name."""

from smartspec.core.lab_tables import WHERE, lab_table
from smartspec.sim.world.hardware import Roofline

PLAIN = "plain"


def on_host(name: str, plain: Roofline) -> Roofline:
    """The same model and devices on the host of that name. ValueError names what there is, or what
    does not fit."""
    if name == PLAIN:
        return plain
    hosts = lab_table("worlds", "HOSTS")
    if name not in hosts:
        others = "" if hosts else f"; others are in {WHERE}"
        raise ValueError(f"unknown host {name!r}: use one of {', '.join([PLAIN, *hosts])}{others}")
    return hosts[name](**vars(plain))
