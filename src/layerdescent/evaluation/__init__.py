"""Evaluation of any checkpoint: the descent profile, its diagnostics, and the robustness sweep."""

from layerdescent.evaluation.diagnostics import Calibration, Flag
from layerdescent.evaluation.profile import DescentProfile, descent_profile, describe
from layerdescent.evaluation.sweep import robustness_sweep
from layerdescent.evaluation.sweep_result import Measurement, Setting, SweepResult

__all__ = [
    "Calibration",
    "DescentProfile",
    "Flag",
    "Measurement",
    "Setting",
    "SweepResult",
    "descent_profile",
    "describe",
    "robustness_sweep",
]
