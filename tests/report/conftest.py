"""The full fixture's page, written once for all tests that only look at it."""

from pathlib import Path

import pytest

from layerdescent.report import write_report
from tests.report.fixture import full_results, video_results, write_pictures


@pytest.fixture(scope="session")
def full_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(full_results(), tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="session")
def video_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("video")
    write_pictures(folder)
    return write_report(video_results(), folder)
