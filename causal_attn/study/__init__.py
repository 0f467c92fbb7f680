"""The main job, stage by stage, from a frozen configuration to a directory of results."""

from causal_attn.study.config import SCHEMES, StudyConfig
from causal_attn.study.diagnose import Diagnosis, diagnose
from causal_attn.study.run import StudyResult, run_study

__all__ = ["SCHEMES", "Diagnosis", "StudyConfig", "StudyResult", "diagnose", "run_study"]
