"""What `layerdescent search` stored, read with every fault named by file and field."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from layerdescent.report.results import Part, read_stored

FILE_NAME = "search.json"


class Candidate(Part):
    """One combination of settings of one arm: means over seeds, on clean validation data; None where a seed failed."""

    arm: str
    settings: dict[str, Any]
    value: float | None = None
    loss: float | None = None
    alpha: float | None = None
    max_violation: float | None = None
    feasible: bool | None = None
    price: float | None = None
    chosen: bool = False
    finalist: bool = False

    @property
    def constrained(self) -> bool:
        """Whether the arm was trained under constraints."""
        return self.alpha is not None


class Trial(Part):
    """One run of one combination of settings."""

    arm: str
    name: str
    seed: int
    settings: dict[str, Any]
    value: float | None = None
    loss: float | None = None
    layer_losses: list[float | None] = Field(default_factory=list)
    max_violation: float | None = None
    feasible: bool | None = None
    multipliers: list[float | None] = Field(default_factory=list)
    lambda_share: list[float | None] = Field(default_factory=list)
    seconds: float | None = None
    failed: str | None = None


class Choice(Part):
    """What was chosen for one arm, and why."""

    arm: str
    settings: dict[str, Any] | None = None
    value: float | None = None
    reason: str


class Search(Part):
    """One search: every trial of every arm, and what was chosen."""

    experiment: str
    title: str | None = None
    command: str | None = None
    recipe: dict[str, Any] = Field(default_factory=dict)
    environment: dict[str, Any] = Field(default_factory=dict)
    metric: Literal["accuracy", "rmse", "perplexity"]
    baseline: str
    price: float
    seeds: list[int]
    unequal: bool = False
    rule: list[str] = Field(default_factory=list)
    choices: list[Choice]
    candidates: list[Candidate]
    trials: list[Trial]

    @property
    def arm_names(self) -> list[str]:
        """The arms in the order of the recipe."""
        return [choice.arm for choice in self.choices]

    def candidates_of(self, arm: str) -> list[Candidate]:
        """The combinations of one arm, in the order of the recipe."""
        return [candidate for candidate in self.candidates if candidate.arm == arm]

    def trials_of(self, candidate: Candidate) -> list[Trial]:
        """The runs that a candidate is the mean of."""
        return [trial for trial in self.trials if (trial.arm, trial.settings) == (candidate.arm, candidate.settings)]

    def searched(self, arm: str) -> dict[str, list[Any]]:
        """The fields in which an arm's candidates differ, each with its values in the order of the recipe."""
        found: dict[str, list[Any]] = {}
        for candidate in self.candidates_of(arm):
            for name, value in candidate.settings.items():
                values = found.setdefault(name, [])
                if value not in values:
                    values.append(value)
        return {name: values for name, values in found.items() if len(values) > 1}


def read_search(source: dict[str, Any] | Path | str) -> Search:
    """Reads a search from a dictionary, a file or a folder that holds `search.json`.

    Raises:
        InputError: There is no such file, or a field is missing or of the wrong kind; the message names both.
        RunError: The file is not JSON.
    """
    return read_stored(Search, source, FILE_NAME, "search")
