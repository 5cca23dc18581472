"""The corridor: one function a verb, each a straight walk through the rooms.

    recipe → checkpoints → logical plan → index → access plan → schedule → shards → published model

`PlanOptions` may change the result and are recorded in the plan; `Limits` change speed only. Every
function raises the errors of `mergepipe.errors`; what has been written by then is a staging folder.
"""

from __future__ import annotations

from mergepipe.api.explanation import bound_object, explain
from mergepipe.api.knowledge import build_index, build_index_of
from mergepipe.api.merges import merge, merge_planned, replay, verify
from mergepipe.api.observer import SILENT, Observer, Silent
from mergepipe.api.options import IndexOptions, PlanOptions
from mergepipe.api.planned import Planned, plan
from mergepipe.api.prepared import check
from mergepipe.api.recorded import load_manifest, load_plan, recorded_plan, save_plan
from mergepipe.api.sweeps import distance, measured_sweep, sweep
from mergepipe.plan.family import FamilyRules, MissingRule, VocabularyRule
from mergepipe.plan.schedule import Limits
from mergepipe.plan.select import Policy

__all__ = [
    "SILENT", "FamilyRules", "IndexOptions", "Limits", "MissingRule", "Observer", "PlanOptions", "Planned", "Policy",
    "Silent", "VocabularyRule", "bound_object", "build_index", "build_index_of", "check", "distance", "explain",
    "load_manifest", "load_plan", "measured_sweep", "merge", "merge_planned", "plan", "recorded_plan", "replay",
    "save_plan", "sweep", "verify",
]  # fmt: skip
