"""The controller: numpy only, no clock, no output. A host calls it twice a step, then gives it the
outcome.

    controller = Controller("goodput", 8, LatencyModel(CostCurve.linear(0.04, 0.002)),
                            drafters=(DrafterSpec("ngram", match_lengths=(0, 3)),))
    plan = controller.plan(view)         # BatchView -> Plan: the drafts to make, of length 0 where none pays
    keep = controller.cut(plan, drafted) # Drafted -> int [R]: the number of tokens of each draft to verify
    controller.learn(plan, outcome)      # Outcome: accepted tokens and measured times; any number of steps later
    controller.end(request_id)

DrafterSpec describes a drafter, DrafterView its drafts in a step; examples/embed_controller.py is a
whole host. SafeController wraps a controller for production: whatever fails in it, the host goes on
without drafts. Names that are not here are internal.
"""  # noqa: E501

from smartspec.control.acceptance.class_ids import ClassIds
from smartspec.control.controller import Controller
from smartspec.control.estimates import Estimates
from smartspec.control.latency.cost_curve import CostCurve, ProfileSample
from smartspec.control.latency.model import LatencyModel
from smartspec.control.log.decision import DecisionRecord, LogHeader
from smartspec.control.planning import plan_of_lengths
from smartspec.control.policy import Policy
from smartspec.control.records import (
    BatchView,
    Drafted,
    DrafterQuery,
    DrafterSpec,
    DrafterView,
    FreeTests,
    Outcome,
    Plan,
    StepSeconds,
)
from smartspec.control.safe_controller import SafeController

__all__ = [
    "BatchView",
    "ClassIds",
    "Controller",
    "CostCurve",
    "DecisionRecord",
    "Drafted",
    "DrafterQuery",
    "DrafterSpec",
    "DrafterView",
    "Estimates",
    "FreeTests",
    "LatencyModel",
    "LogHeader",
    "Outcome",
    "Plan",
    "Policy",
    "ProfileSample",
    "SafeController",
    "StepSeconds",
    "plan_of_lengths",
]
