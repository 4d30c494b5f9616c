import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from transformers import default_data_collator

from layerdescent.data.video.clips import Clip
from layerdescent.data.video.windows import (
    VideoWindows,
    all_positions,
    random_positions,
    sampled_positions,
)
from layerdescent.errors import InputError, RunError


def clip(name: str, frames: int, height: int = 10, width: int = 12, *stretches: tuple[int, int]) -> Clip:
    """A clip in which every byte tells where it is, modulo 256."""
    pixels = (np.arange(frames * height * width) * 7 % 256).astype(np.uint8).reshape(frames, height, width)
    return Clip(name=name, store=pixels, stretches=stretches or ((0, frames),), camera="one")


CLIPS = [clip("long", 9), clip("short", 3), clip("broken", 8, 10, 12, (0, 3), (3, 8)), clip("large", 5, 16, 20)]


def check_inside(positions: np.ndarray, clips: Sequence[Clip], frames: int, patch: int) -> None:
    for number, start, row, column in positions.tolist():
        assert any(first <= start and start + frames <= last for first, last in clips[number].stretches)
        height, width = clips[number].size
        assert 0 <= row <= height - patch
        assert 0 <= column <= width - patch


# Rows -----------------------------------------------------------------------------------------------------------------


def test_a_row_is_a_patch_over_time_in_0_to_1() -> None:
    rows = VideoWindows(CLIPS, np.array([[0, 2, 2, 4], [3, 0, 8, 12]]), frames=4, patch=8)[1]
    expected = CLIPS[3].pixels[0:4, 8:16, 12:20].reshape(4, 64).astype(np.float64) / 255
    assert rows["pixel_values"].dtype == torch.float32
    np.testing.assert_allclose(rows["pixel_values"].numpy(), expected, atol=1e-7)
    assert torch.equal(rows["labels"], rows["pixel_values"])


def test_rows_come_one_by_one_in_batches_and_through_torchs_loader_the_same() -> None:
    rows = VideoWindows(CLIPS, random_positions(CLIPS, 10, frames=3, patch=4, seed=1), frames=3, patch=4)
    values = torch.from_numpy(rows.values())
    assert values.shape == (10, 3, 16)
    assert torch.equal(torch.stack([row["pixel_values"] for row in rows]), values)  # a loop over the rows ends
    assert torch.equal(torch.stack([row["labels"] for row in rows.__getitems__([3, 1])]), values[[3, 1]])
    assert torch.equal(rows[-1]["pixel_values"], values[9])
    loader: Any = DataLoader(rows, batch_size=4, collate_fn=default_data_collator)
    batches = list(loader)
    assert torch.equal(torch.cat([batch["pixel_values"] for batch in batches]), values)
    assert torch.equal(torch.cat([batch["labels"] for batch in batches]), values)
    with pytest.raises(IndexError):
        rows[10]


def test_a_batch_costs_one_small_slice_for_each_window() -> None:
    """Counted, not timed: no frame is copied whole, and nothing grows with the length of the clips."""
    slices: list[tuple[int, ...]] = []

    class Counting(np.ndarray):
        def __getitem__(self, key: Any) -> Any:
            cut = super().__getitem__(key)
            slices.append(cut.shape)
            return cut

    counted = [Clip(name=c.name, store=c.pixels.view(Counting), stretches=c.stretches, camera="one") for c in CLIPS]
    positions = random_positions(counted, 1000, frames=3, patch=4, seed=0)
    rows = VideoWindows(counted, positions, frames=3, patch=4)
    slices.clear()
    rows.__getitems__(list(range(32)))
    assert slices == [(3, 4, 4)] * 32


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ([0, 6, 0, 0], "at frame 6, row 0, column 0 is not inside the usable frames of clip long"),
        ([2, 1, 0, 0], "at frame 1, .* of clip broken"),
        ([0, 0, 3, 0], "row 3"),
        ([0, 0, 0, 5], "column 5"),
        ([4, 0, 0, 0], "count clips from 0 to 3"),
        ([0, 0, -1, 0], "frames and pixels from 0"),
    ],
)
def test_a_window_outside_its_clip_is_refused(place: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        VideoWindows(CLIPS, np.array([[0, 0, 0, 0], place]), frames=4, patch=8)


def test_no_windows_are_refused() -> None:
    with pytest.raises(InputError, match=r"N at least 1, but their shape is \(0, 4\)"):
        VideoWindows(CLIPS, np.empty((0, 4), dtype=np.int32), frames=4, patch=8)


def test_windows_know_their_clips() -> None:
    rows = VideoWindows(CLIPS, np.array([[3, 0, 0, 0], [0, 0, 0, 0], [3, 1, 0, 0]]), frames=4, patch=8)
    assert rows.clip.tolist() == [3, 0, 3]
    assert rows.clip_names == ["long", "short", "broken", "large"]
    assert [clip.name for clip in rows.used_clips] == ["long", "large"]


# Random ---------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 8), st.integers(0, 99))
def test_random_windows_lie_inside(frames: int, patch: int, seed: int) -> None:
    check_inside(random_positions(CLIPS, 200, frames=frames, patch=patch, seed=seed), CLIPS, frames, patch)


def test_random_windows_depend_on_seed_and_number_only() -> None:
    few = random_positions(CLIPS, 20, frames=3, patch=4, seed=5)
    many = random_positions(CLIPS, 500, frames=3, patch=4, seed=5)
    np.testing.assert_array_equal(many[:20], few)
    assert (random_positions(CLIPS, 20, frames=3, patch=4, seed=6) != few).any()


def test_random_windows_are_all_equally_likely() -> None:
    clips = [clip("a", 4, 5, 4), clip("b", 3, 4, 4), clip("none", 2, 9, 9)]
    counts = Counter(map(tuple, random_positions(clips, 50_000, frames=3, patch=4, seed=0).tolist()))
    everything = {(0, start, row, 0) for start in (0, 1) for row in (0, 1)} | {(1, 0, 0, 0)}
    assert counts.keys() == everything
    assert max(abs(count - 10_000) for count in counts.values()) < 400  # more than 4 standard deviations


# Sampled --------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(1, 4), st.integers(1, 8), st.integers(0, 99))
def test_sampled_windows_are_different_inside_and_in_proportion(count: int, frames: int, patch: int, seed: int) -> None:
    positions = sampled_positions(CLIPS, count, frames=frames, patch=patch, seed=seed)
    check_inside(positions, CLIPS, frames, patch)
    assert len(np.unique(positions, axis=0)) == len(positions)
    sizes = np.array(
        [len(c.starts(frames)) * max(0, c.size[0] - patch + 1) * max(0, c.size[1] - patch + 1) for c in CLIPS]
    )
    assert len(positions) == min(count, sizes.sum())
    drawn = np.bincount(positions[:, 0], minlength=len(CLIPS))
    if count >= 4:
        assert (drawn[sizes > 0] >= 1).all()
    assert np.abs(drawn - len(positions) * sizes / sizes.sum()).max() < 2 + len(CLIPS)


def test_sampled_windows_of_a_clip_depend_on_its_name_not_on_its_place() -> None:
    first = sampled_positions([CLIPS[0], CLIPS[2]], 2000, frames=3, patch=4, seed=0)
    second = sampled_positions([CLIPS[2], CLIPS[0]], 2000, frames=3, patch=4, seed=0)
    np.testing.assert_array_equal(first[first[:, 0] == 0, 1:], second[second[:, 0] == 1, 1:])
    other = sampled_positions(CLIPS, 50, frames=3, patch=4, seed=0)
    assert (other != sampled_positions(CLIPS, 50, frames=3, patch=4, seed=1)).any()


# All ------------------------------------------------------------------------------------------------------------------


def test_all_windows_tile_every_stretch_without_overlap() -> None:
    covered = [np.zeros(c.pixels.shape, dtype=int) for c in CLIPS]
    for number, start, row, column in all_positions(CLIPS, frames=3, patch=4).tolist():
        covered[number][start : start + 3, row : row + 4, column : column + 4] += 1
    expected = [np.zeros(c.pixels.shape, dtype=int) for c in CLIPS]
    for number, c in enumerate(CLIPS):
        for first, last in c.stretches:
            tiled = (last - first) // 3 * 3
            expected[number][first : first + tiled, : c.size[0] // 4 * 4, : c.size[1] // 4 * 4] = 1
    for one, other in zip(covered, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# None ---------------------------------------------------------------------------------------------------------------


DRAWS: dict[str, Callable[[Sequence[Clip], int, int], Any]] = {
    "random": lambda clips, frames, patch: random_positions(clips, 5, frames=frames, patch=patch, seed=0),
    "sampled": lambda clips, frames, patch: sampled_positions(clips, 5, frames=frames, patch=patch, seed=0),
    "all": lambda clips, frames, patch: all_positions(clips, frames=frames, patch=patch),
}


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize(
    ("clips", "frames", "patch", "message"),
    [
        (CLIPS, 10, 8, "no clip has a window of 10 frames of 8x8 pixels: the longest stretch without a break has 9"),
        (CLIPS, 3, 17, "no clip has a window .* the largest frame is 20x16; ask for smaller windows"),
        ([], 3, 4, "there are no clips"),
        (CLIPS, 0, 4, "a window has 0 frames and a patch of 4 pixels; give 1 or more of each"),
    ],
)
def test_windows_that_no_clip_has(draw: str, clips: list[Clip], frames: int, patch: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DRAWS[draw](clips, frames, patch)


# Stored ---------------------------------------------------------------------------------------------------------------


def test_stored_windows_are_the_same_windows_whatever_the_order_of_clips(tmp_path: Path) -> None:
    rows = VideoWindows(CLIPS, sampled_positions(CLIPS, 30, frames=3, patch=4, seed=0), frames=3, patch=4)
    rows.save(tmp_path / "windows.json")
    stored = json.loads((tmp_path / "windows.json").read_text())
    assert stored["windows"][0] == ["long", *rows.positions[0, 1:].tolist()]
    again = VideoWindows.load(CLIPS[::-1], tmp_path / "windows.json")
    assert (again.frames, again.patch) == (3, 4)
    np.testing.assert_array_equal(again.values(), rows.values())
    assert [again.clip_names[number] for number in again.clip] == [rows.clip_names[number] for number in rows.clip]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"frames": 3, "patch": 4}, "is no list of windows: it needs frames, patch and windows"),
        ([1, 2], "is no list of windows"),
        ({"frames": 3, "patch": 4, "windows": [["long", 0, 0]]}, r"each must be \[clip, first frame, row, column\]"),
        ({"frames": 3, "patch": 4, "windows": [["gone", 0, 0, 0]]}, "names the clip 'gone', which is not here"),
        ({"frames": 3, "patch": 4, "windows": [["long", 7, 0, 0]]}, "not inside the usable frames of clip long"),
        ({"frames": 3, "patch": 4, "windows": []}, "N at least 1"),
    ],
)
def test_stored_windows_that_do_not_fit(tmp_path: Path, content: object, message: str) -> None:
    (tmp_path / "windows.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        VideoWindows.load(CLIPS, tmp_path / "windows.json")


def test_a_damaged_list_of_windows(tmp_path: Path) -> None:
    (tmp_path / "windows.json").write_text('{"frames": 3')
    with pytest.raises(RunError, match="is damaged"):
        VideoWindows.load(CLIPS, tmp_path / "windows.json")
