"""How drafts are made where SmartSpec only observes: as the caller says, with vLLM's own lengths."""

import argparse

from smartspec.vllm_plugin.routes import OWN, TABLE, Machine, Route, route_of


def observed_route(options: argparse.Namespace, given: str | None, machine: Machine) -> Route:
    """The caller's own configuration, or one made of the options, without a table of lengths; without either, vLLM's
    n-gram. given: the value of --speculative-config. ValueError where vLLM itself would draft nothing."""
    if options.spec_method == OWN:
        raise ValueError(f"--spec-method {OWN} drafts in SmartSpec's scheduler, and --observe leaves all to vLLM")
    why = "SmartSpec observes, and vLLM decides"
    if given is None and options.spec_method is None and options.spec_model is None:
        options = argparse.Namespace(**vars(options) | {"spec_method": _ngram(machine)})
    route = route_of(options, given, machine)
    if route.is_own:
        raise ValueError("NoDrafts makes no drafts, and --observe leaves all to vLLM: name a drafter of vLLM's")
    if given is not None:
        return Route(route.speculation, f"{why}: {route.why}")
    speculation = {name: value for name, value in route.speculation.items() if name != TABLE}
    named = speculation.get("method") or f"model {speculation.get('model')}"
    return Route(speculation, f"{why}: drafts by {named} of one length")


def _ngram(machine: Machine) -> str:
    """The method that drafts as it will once SmartSpec decides: what is observed, and a card of it, are of use then.
    ValueError where it is known to be slower than vLLM without speculation."""
    if machine.is_cpu:
        return "ngram"
    if machine.problem is None:
        return "ngram_gpu"
    raise ValueError(
        f"{machine.problem}: n-gram drafts would make vLLM slower than no speculation on this GPU. Name a head, a "
        "draft model or another drafter of vLLM's (--spec-method, --spec-model or --speculative-config)"
    )
