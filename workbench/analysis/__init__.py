"""Analysis: project, cluster, compare and probe stored hidden states, each with its doubt beside the number.

Names are resolved on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lazily import resolve_late

_HOME = {
    "Churn": "churning",
    "Clusters": "clustering",
    "Comparison": "comparison",
    "ErrorSplit": "splitting",
    "Fit": "worker",
    "Floor": "floors",
    "Head": "lens",
    "LearningCurve": "sweeping",
    "Lens": "lens",
    "NearRows": "neighbours",
    "Probe": "probe",
    "Projection": "projection",
    "PromptPair": "pairs",
    "Sweep": "sweeping",
    "Transfer": "transferring",
    "align": "aligning",
    "churn": "churning",
    "cluster": "clustering",
    "compare": "comparing",
    "debiased_linear_cka": "similarity",
    "find_neighbours": "neighbours",
    "find_prompts": "neighbours",
    "fit_probe": "probing",
    "head_from": "lens",
    "learning_curve": "sweeping",
    "load_clusters": "clustering",
    "load_floor": "floors",
    "load_probe": "saving",
    "load_projection": "projection",
    "logit_lens": "lens",
    "make_floor": "repeating",
    "pair_prompts": "pairs",
    "project": "projection",
    "rank_agreement": "lens",
    "save_probe": "saving",
    "split_error": "splitting",
    "start_cluster": "clustering",
    "start_project": "projection",
    "sweep_probe": "sweeping",
    "to_scikit_learn": "saving",
    "transfer": "transferring",
    "transfer_sweep": "transferring",
}

__all__ = list(_HOME)


__getattr__, __dir__ = resolve_late("workbench.analysis", _HOME)

if TYPE_CHECKING:
    from workbench.analysis.aligning import align as align
    from workbench.analysis.churning import Churn as Churn
    from workbench.analysis.churning import churn as churn
    from workbench.analysis.clustering import Clusters as Clusters
    from workbench.analysis.clustering import cluster as cluster
    from workbench.analysis.clustering import load_clusters as load_clusters
    from workbench.analysis.clustering import start_cluster as start_cluster
    from workbench.analysis.comparing import compare as compare
    from workbench.analysis.comparison import Comparison as Comparison
    from workbench.analysis.floors import Floor as Floor
    from workbench.analysis.floors import load_floor as load_floor
    from workbench.analysis.lens import Head as Head
    from workbench.analysis.lens import Lens as Lens
    from workbench.analysis.lens import head_from as head_from
    from workbench.analysis.lens import logit_lens as logit_lens
    from workbench.analysis.lens import rank_agreement as rank_agreement
    from workbench.analysis.neighbours import NearRows as NearRows
    from workbench.analysis.neighbours import find_neighbours as find_neighbours
    from workbench.analysis.neighbours import find_prompts as find_prompts
    from workbench.analysis.pairs import PromptPair as PromptPair
    from workbench.analysis.pairs import pair_prompts as pair_prompts
    from workbench.analysis.probe import Probe as Probe
    from workbench.analysis.probing import fit_probe as fit_probe
    from workbench.analysis.projection import Projection as Projection
    from workbench.analysis.projection import load_projection as load_projection
    from workbench.analysis.projection import project as project
    from workbench.analysis.projection import start_project as start_project
    from workbench.analysis.repeating import make_floor as make_floor
    from workbench.analysis.saving import load_probe as load_probe
    from workbench.analysis.saving import save_probe as save_probe
    from workbench.analysis.saving import to_scikit_learn as to_scikit_learn
    from workbench.analysis.similarity import debiased_linear_cka as debiased_linear_cka
    from workbench.analysis.splitting import ErrorSplit as ErrorSplit
    from workbench.analysis.splitting import split_error as split_error
    from workbench.analysis.sweeping import LearningCurve as LearningCurve
    from workbench.analysis.sweeping import Sweep as Sweep
    from workbench.analysis.sweeping import learning_curve as learning_curve
    from workbench.analysis.sweeping import sweep_probe as sweep_probe
    from workbench.analysis.transferring import Transfer as Transfer
    from workbench.analysis.transferring import transfer as transfer
    from workbench.analysis.transferring import transfer_sweep as transfer_sweep
    from workbench.analysis.worker import Fit as Fit
