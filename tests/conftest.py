"""What every test shares: one thread, no network, and the real data where they are."""

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch
from hypothesis import settings

settings.register_profile("layerdescent", deadline=None, derandomize=True)  # a busy machine is not a failure
settings.load_profile("layerdescent")

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def deterministic() -> None:
    """One thread and one seed, so that a number in a test is the same number everywhere."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout; tests that use it are marked `shared`."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"needs the real data sets, which are not at {SHARED_DATA}")
    return SHARED_DATA
