"""Training gives the numbers it gave: a change that was not meant to move them did not."""

import json

import numpy as np
import pytest

from tests.invariants.golden import ARMS, GOLDEN, STEPS, run

golden = json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("arm", ARMS)
def test_the_run_is_the_stored_one(arm: str) -> None:
    made_with = golden["environment"]
    found, stored = run(arm), golden["runs"][arm]
    assert found.keys() == stored.keys()
    for name, values in stored.items():
        np.testing.assert_allclose(
            found[name],
            values,
            rtol=1e-4,
            atol=1e-6,
            err_msg=f"{name} of {arm}, stored with torch {made_with['torch']} and transformers "
            f"{made_with['transformers']}; if the change is meant: python -m tests.invariants.golden",
        )


def test_the_stored_runs_compare_something() -> None:
    erm, descent = (np.array(golden["runs"][arm]["layer_losses"]) for arm in ("erm", "descent"))
    multipliers = np.array(golden["runs"]["descent"]["multipliers"])
    assert erm.shape == descent.shape == (STEPS, 4)
    assert multipliers.shape == (STEPS, 3)
    np.testing.assert_allclose(erm[0], descent[0], rtol=1e-6)  # lambda is 0 in the first step
    assert (multipliers[-1] > 0.1).any()
    assert np.abs(erm[-1] - descent[-1]).max() > 1e-2
    assert np.ptp(erm[0]) > 1e-2  # layers that differ
