"""Settings for descent constraints out of a short pilot on one's own data, with reasons in words.

    recipe -> pilot without constraints -> measured numbers -> rules -> proposal -> check under it -> suggested.yaml

`rules` is pure: numbers in, a proposal with its reasons out. `pilot` trains and measures, in a folder that can be
picked up at any time.
"""

from layerdescent.suggest.pilot import suggest_recipe
from layerdescent.suggest.rules import Measured, Proposal, Reason, judge, propose, revise
from layerdescent.suggest.words import suggestion_text

__all__ = ["Measured", "Proposal", "Reason", "judge", "propose", "revise", "suggest_recipe", "suggestion_text"]
