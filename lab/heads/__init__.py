"""Trained heads that no default reaches, by the kind of head that a folder holds. `--drafter
FOLDER` finds them here wherever Python finds the folder lab/."""

from lab.heads.acceptance_head import JudgedHead, JudgedRunner, read_judged
from lab.heads.eagle.checkpoint import read_eagle
from lab.heads.eagle.head import EagleHead, EagleRunner
from lab.heads.medusa.checkpoint import read_medusa
from lab.heads.medusa.drafter import MedusaDrafter, MedusaRunner
from lab.heads.medusa.head import MedusaHead
from lab.heads.p_eagle.checkpoint import read_p_eagle
from lab.heads.p_eagle.drafter import PEagleDrafter, PEagleRunner
from lab.heads.p_eagle.head import PEagleHead
from lab.heads.redrafter.checkpoint import MODEL_TYPE, read_redrafter
from lab.heads.redrafter.drafter import ReDrafterDrafter, ReDrafterRunner
from lab.heads.redrafter.head import ReDrafterHead
from smartspec.engine.drafting.head.drafter import HeadDrafter
from smartspec.engine.drafting.head.kinds import JUDGED, HeadKind

HEADS = {
    "eagle": HeadKind(EagleHead, read_eagle, EagleRunner, HeadDrafter),
    "peagle": HeadKind(PEagleHead, read_p_eagle, PEagleRunner, PEagleDrafter),
    JUDGED: HeadKind(JudgedHead, read_judged, JudgedRunner, HeadDrafter),
    "medusa": HeadKind(MedusaHead, read_medusa, MedusaRunner, MedusaDrafter),
    MODEL_TYPE: HeadKind(ReDrafterHead, read_redrafter, ReDrafterRunner, ReDrafterDrafter),
}
