"""The parts of a recipe that only video has: a network to train, clips and windows, and whole frames."""

from typing import Annotated, Any, Literal

from pydantic import Field

from layerdescent.recipes.common import Count, Level, Part, Section, Seed, Share, Task


class NetworkSpec(Section):
    """An unrolled network, or one to compare it with, that every arm trains from scratch."""

    architecture: Literal["dust", "ut", "ista", "transformer-denoiser"]
    config: dict[str, Any] = Field(default_factory=dict)
    """Fields of its configuration; the numbers of pixels and of frames are those of the data."""


class WindowsSpec(Section):
    """How many windows each part has; null is those that tile every clip."""

    train: Count = 32_000
    """Of an epoch, at random places."""
    validation: Count | None = 1_000
    test: Count | None = 4_000


class SyntheticSpec(Section):
    """Clips that the program draws itself: sprites that move over a textured background, and slow changes of light."""

    clips: Count = 12
    frames: Count = 64
    height: Count = 96
    width: Count = 96
    cameras: Count = 3
    seed: Seed = 0


class VideoSpec(Section):
    """Where the clips come from and how windows are cut out of them: `layerdescent.data.video.prepare_video`."""

    kind: Literal["video"]
    source: str
    """A data set's folder, a folder of videos or of frames, a video file, or `synthetic`."""
    format: str = "auto"
    frames: Count = 12
    """Frames in a window."""
    patch: Count = 8
    """Side of the square patch, in pixels."""
    windows: WindowsSpec = WindowsSpec()
    split_by: Literal["auto", "clips", "frames"] = "auto"
    official: bool = True
    """Whether the data set's own test clips are the test part."""
    clips: dict[Part, list[Annotated[str, Field(coerce_numbers_to_str=True)]]] | None = None
    """The clips of each part, by name or pattern."""
    validation_share: Share = 0.15
    test_share: Share = 0.25
    max_clips: Count | None = None
    max_frames: Count | None = None
    longest_side: Count | None = None
    scale: Annotated[float, Field(gt=0, le=1)] | None = None
    synthetic: SyntheticSpec | None = None
    seed: Seed = 0

    @property
    def task(self) -> Task:
        """Pixels are numbers."""
        return "regression"


class WholeFramesSpec(Section):
    """Whole frames of test clips that every final model of video denoises, once, under gaussian noise."""

    clips: Count = 4
    """Of how many test clips."""
    frames: Count = 12
    """Frames that follow each other, of each."""
    gammas: list[Level] = Field(default=[0.2, 1.0, 1.5], min_length=1)
