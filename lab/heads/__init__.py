"""Trained heads that no default reaches, by the kind of head that a folder holds. `--drafter FOLDER` finds them here
wherever Python finds the folder lab/."""

from lab.heads.medusa.checkpoint import read_medusa
from lab.heads.medusa.drafter import MedusaDrafter, MedusaRunner
from lab.heads.medusa.head import MedusaHead
from lab.heads.redrafter.checkpoint import MODEL_TYPE, read_redrafter
from lab.heads.redrafter.drafter import ReDrafterDrafter, ReDrafterRunner
from lab.heads.redrafter.head import ReDrafterHead
from smartspec.engine.drafting.head.kinds import HeadKind

HEADS = {
    "medusa": HeadKind(MedusaHead, read_medusa, MedusaRunner, MedusaDrafter),
    MODEL_TYPE: HeadKind(ReDrafterHead, read_redrafter, ReDrafterRunner, ReDrafterDrafter),
}
