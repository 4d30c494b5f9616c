import math
import sys
import weakref
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BertConfig, BertForSequenceClassification

from layerdescent.denoise import denoise_video, video
from layerdescent.denoise.pictures import Picture, pictures
from layerdescent.errors import InputError, RunError
from layerdescent.models import DustConfig, DustForDenoising, VideoDenoiser
from tests.data.video.films import Frames, film, touch, write_images, write_video
from tests.data.video.test_decode import write_sound
from tests.denoise.clips import Fading, coloured, planes_of, rest, rgb_of, sound_of, times_of, unit, write_clip

SIZE = (18, 22)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of grey frames, and nothing beside it."""
    write_images(tmp_path / "in", film(11, *SIZE))
    return tmp_path / "in"


def frames_in(folder: Path) -> Frames:
    images = [np.asarray(Image.open(path)) for path in sorted(folder.iterdir())]
    return np.stack(images)


# What comes out -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [None, 1])
def test_a_stream_gives_what_the_whole_clip_gives(folder: Path, tmp_path: Path, layers: int | None) -> None:
    torch.manual_seed(0)
    model = DustForDenoising(DustConfig(num_pixels=16, num_frames=4, hidden_size=32, num_hidden_layers=2))
    model.save_pretrained(tmp_path / "model")
    done = denoise_video(tmp_path / "model", folder, tmp_path / "out", layers=layers, frame_stride=3)
    whole = VideoDenoiser(model, frame_stride=3)(unit(film(11, *SIZE))[None], layers)[0].clamp(0, 1)
    # A value between two levels may fall to either side.
    assert np.abs(frames_in(tmp_path / "out") - whole.numpy() * 255).max() <= 0.501
    assert (done.frames, done.size, done.layers, done.quality, done.notes) == (11, SIZE, layers or 2, None, ())
    assert done.frames_per_second == pytest.approx(11 / done.seconds)
    assert rest(tmp_path / "out") == rest(folder)


@pytest.mark.parametrize("colour", ["luma", "channels"])
@pytest.mark.parametrize("count", [20, 60])
def test_memory_holds_a_window_whatever_the_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colour: Any, count: int
) -> None:
    write_images(tmp_path / "in", coloured(count, 8, 8))
    alive: weakref.WeakSet[Picture] = weakref.WeakSet()
    held = []

    def watched(*arguments: Any) -> Iterator[Picture]:
        for picture in pictures(*arguments):
            alive.add(picture)
            held.append(len(alive))
            yield picture

    monkeypatch.setattr(video, "pictures", watched)
    denoise_video(Fading(num_frames=4), tmp_path / "in", tmp_path / "out", gamma=0.1, colour=colour, frame_stride=2)
    assert len(held) == count
    assert max(held) <= 4 + 2 + 2  # the window, what the next one adds, one being read and one being written


def test_fewer_layers_run_when_fewer_are_asked_for(folder: Path, tmp_path: Path) -> None:
    model = Fading(share=0.5, num_hidden_layers=3)
    denoise_video(model, folder, tmp_path / "out", layers=2)
    assert model.layers_run == {2}
    expected = 127.5 + (film(11, *SIZE) - 127.5) / 4
    assert np.abs(frames_in(tmp_path / "out") - expected).max() <= 0.51


# Noise and quality ----------------------------------------------------------------------------------------------------


def test_quality_of_every_layer_under_noise(folder: Path, tmp_path: Path) -> None:
    done = denoise_video(Fading(share=0.5), folder, tmp_path / "out", gamma=0.3, seed=7)
    clean = film(11, *SIZE) / 255
    noise = np.stack([np.random.default_rng([7, n]).standard_normal(SIZE, dtype=np.float32) for n in range(11)])
    noisy = clean + 0.3 * noise
    assert done.quality is not None
    assert len(done.quality) == 3
    for layer, quality in enumerate(done.quality):
        estimate = 0.5 + (noisy - 0.5) / 2**layer
        clipped = np.sqrt(np.mean((estimate.clip(0, 1) - clean) ** 2))
        assert quality.rmse == pytest.approx(np.sqrt(np.mean((estimate - clean) ** 2)), rel=1e-4)
        assert quality.rmse_clipped == pytest.approx(clipped, rel=1e-4)
        assert quality.psnr == pytest.approx(10 * np.log10(1 / clipped**2), abs=1e-3)
    assert done.quality[0].rmse == pytest.approx(0.3, rel=0.05)


def test_noise_depends_on_seed_and_frame_alone(tmp_path: Path) -> None:
    still = np.full((9, *SIZE), 128, dtype=np.uint8)
    write_images(tmp_path / "long", still)
    write_images(tmp_path / "short", still[:3])
    noisy = {}
    for name, seed in (("long", 0), ("short", 0), ("long", 1)):
        out = tmp_path / f"{name}{seed}"
        denoise_video(Fading(), tmp_path / name, out, gamma=0.05, seed=seed, side_by_side=True)
        noisy[name, seed] = frames_in(out)[..., : SIZE[1]]
    np.testing.assert_array_equal(noisy["short", 0], noisy["long", 0][:3])
    # Two different draws of deviation 0.05 differ by 0.07 or 18 levels.
    assert np.std(noisy["long", 1].astype(float) - noisy["long", 0]) == pytest.approx(18, rel=0.1)
    assert np.std(noisy["long", 0][0].astype(float) - noisy["long", 0][1]) == pytest.approx(18, rel=0.1)


def test_quality_against_a_clean_video(folder: Path, tmp_path: Path) -> None:
    shifted = (film(11, *SIZE) // 2 + 40).astype(np.uint8)
    write_images(tmp_path / "noisy", shifted)
    done = denoise_video(Fading(share=0.5), tmp_path / "noisy", tmp_path / "out", clean=folder)
    assert done.quality is not None
    clean = film(11, *SIZE) / 255
    for layer, quality in enumerate(done.quality):
        estimate = 0.5 + (shifted / 255 - 0.5) / 2**layer
        assert quality.rmse == pytest.approx(np.sqrt(np.mean((estimate - clean) ** 2)), rel=1e-4)


def test_an_exact_video_has_no_error(folder: Path, tmp_path: Path) -> None:
    done = denoise_video(Fading(), folder, tmp_path / "out", clean=folder)
    assert done.quality is not None
    assert done.quality[0].psnr > 100  # rounding of the windows' sums alone
    assert video.LayerQuality(0.0, 0.0).psnr == math.inf


def test_a_clean_video_of_another_size_colour_or_length_is_refused(folder: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "small", film(11, 8, 8))
    write_images(tmp_path / "colour", coloured(11, *SIZE))
    write_images(tmp_path / "short", film(5, *SIZE))
    wrong: list[tuple[str, Any, str]] = [
        ("small", "luma", r"is 1 x 8 x 8 \(channels x height x width\), and IN is 1 x 18 x 22"),
        ("colour", "channels", "is 3 x 18 x 22"),
        ("short", "luma", "has 5 frames, and IN has 11"),
    ]
    for name, colour, message in wrong:
        with pytest.raises(InputError, match=message):
            denoise_video(Fading(), folder, tmp_path / "out", clean=tmp_path / name, colour=colour)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("count", "word"), [(5, "fewer"), (15, "more")])
def test_a_clean_video_that_turns_out_longer_or_shorter(folder: Path, tmp_path: Path, count: int, word: str) -> None:
    clean = write_video(tmp_path / "clean.mkv", film(count, *SIZE))  # Matroska doesn't say how many frames it has
    done = denoise_video(Fading(), folder, tmp_path / "out", clean=clean)
    assert done.quality is None
    assert done.notes == (f"nothing is measured: {clean} has {word} frames than IN",)
    assert len(rest(tmp_path / "out")) == 11


def test_nothing_is_measured_where_frames_are_lost(folder: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "noisy", film(12, *SIZE))
    (tmp_path / "noisy/005.png").write_bytes(b"")
    (tmp_path / "noisy/006.png").unlink()
    done = denoise_video(Fading(), tmp_path / "noisy", tmp_path / "out", clean=folder)
    assert done.quality is None
    assert "which clean one belongs to which" in done.notes[-1]


# Colour ---------------------------------------------------------------------------------------------------------------


def test_luma_is_denoised_and_colour_kept(tmp_path: Path) -> None:
    rgb = coloured()
    write_images(tmp_path / "in", rgb)
    denoise_video(Fading(share=0.5), tmp_path / "in", tmp_path / "out", layers=1)
    found = frames_in(tmp_path / "out").astype(int)
    luma = rgb @ np.array([0.299, 0.587, 0.114])
    expected = rgb + ((luma - 127.5) / 2 + 127.5 - luma)[..., None]  # what all three have in common
    assert np.abs(found - expected).max() <= 4


def test_channels_are_denoised_each_for_itself(tmp_path: Path) -> None:
    rgb = coloured()
    write_images(tmp_path / "in", rgb)
    denoise_video(Fading(share=0.5), tmp_path / "in", tmp_path / "out", layers=1, colour="channels")
    assert np.abs(frames_in(tmp_path / "out") - (127.5 + (rgb - 127.5) / 2)).max() <= 0.51


@pytest.mark.parametrize("colour", ["luma", "channels"])
@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".avi"])
def test_a_coloured_video_stays_what_it_is(tmp_path: Path, colour: Any, suffix: str) -> None:
    source = write_clip(tmp_path / "in.mkv", coloured(6, 48, 64))
    denoise_video(Fading(), source, tmp_path / f"out{suffix}", colour=colour)
    error = rgb_of(tmp_path / f"out{suffix}").astype(int) - rgb_of(source)
    assert np.abs(error).mean() < 2.5
    for stored, before in zip(planes_of(tmp_path / f"out{suffix}"), planes_of(source), strict=True):
        for plane, expected in zip(stored[1:], before[1:], strict=True):
            assert np.abs(plane.astype(int) - expected).mean() < 2


def test_grey_stays_grey(folder: Path, tmp_path: Path) -> None:
    grey = write_video(tmp_path / "in.mkv", film(5, *SIZE), "ffv1", "gray")
    colours: list[Any] = ["luma", "channels"]
    for colour in colours:
        denoise_video(Fading(), grey, tmp_path / colour, colour=colour)
        np.testing.assert_array_equal(frames_in(tmp_path / colour), film(5, *SIZE))
    denoise_video(Fading(), folder, tmp_path / "out.mp4")
    assert {
        code for planes in planes_of(tmp_path / "out.mp4") for plane in planes[1:] for code in np.unique(plane)
    } == {128}


def test_side_by_side_is_what_was_given_and_what_came_out(tmp_path: Path) -> None:
    write_images(tmp_path / "in", coloured())
    done = denoise_video(Fading(share=1), tmp_path / "in", tmp_path / "out.mp4", side_by_side=True, layers=1)
    shown = rgb_of(tmp_path / "out.mp4")
    assert shown.shape == (6, 24, 64, 3)
    assert done.size == (24, 32)
    assert np.abs(shown[:, :, :32].astype(int) - coloured()).mean() < 4
    assert np.abs(shown[:, :, 32:].astype(int) - coloured()).mean() > 8  # colour alone
    assert np.std(planes_of(tmp_path / "out.mp4")[0][0][:, 34:]) < 3


def test_odd_sizes_are_made_even_and_said(tmp_path: Path) -> None:
    write_images(tmp_path / "in", film(3, 17, 21))
    done = denoise_video(Fading(), tmp_path / "in", tmp_path / "out.mp4")
    assert planes_of(tmp_path / "out.mp4")[0][0].shape == (18, 22)
    assert done.notes == ("21x17 is written as 22x18: the codec takes even sizes only",)
    assert denoise_video(Fading(), tmp_path / "in", tmp_path / "out").notes == ()
    assert frames_in(tmp_path / "out").shape == (3, 17, 21)


# Sound and time -------------------------------------------------------------------------------------------------------


def seconds(times: Iterable[Fraction], later: Fraction = Fraction(0)) -> list[float]:
    return [float(time + later) for time in times]


@pytest.mark.parametrize(
    ("before", "after", "sound"),
    [("mkv", "mkv", "pcm_s16le"), ("mp4", "mkv", "aac"), ("mkv", "mp4", "aac"), ("mov", "mov", "aac"),
     ("avi", "avi", "pcm_s16le")],
)  # fmt: skip
def test_sound_and_time_stamps_are_kept(tmp_path: Path, before: str, after: str, sound: str) -> None:
    even = before == "avi"
    times = list(range(20)) if even else [0, 1, 2, 3, 7, 8, *range(10, 24)]
    source = write_clip(
        tmp_path / f"in.{before}", film(20, 24, 32), times=times, sound=sound, codec="mpeg4" if even else "libx264"
    )
    done = denoise_video(Fading(), source, tmp_path / f"out.{after}")
    assert done.notes == ()
    kept, heard = sound_of(done.out), sound_of(source)
    assert [content for _, content in kept] == [content for _, content in heard]
    assert len(heard) > 5
    # Matroska has no times below 0, with which the sound of an MP4 begins: everything is later by as much.
    later = max(Fraction(0), -heard[0][0]) if after == "mkv" else Fraction(0)
    assert seconds(times_of(done.out)) == pytest.approx(seconds(times_of(source), later), abs=6e-4)
    assert seconds(time for time, _ in kept) == pytest.approx(seconds((time for time, _ in heard), later), abs=2e-3)


def test_time_begins_at_nothing_and_sound_stays_with_the_pictures(tmp_path: Path) -> None:
    times = list(range(50, 70))
    source = write_clip(
        tmp_path / "in.mpg", film(20, 24, 32), container="mpegts", times=times, sound="aac", sound_from=3
    )
    out = denoise_video(Fading(), source, tmp_path / "out.mkv").out
    apart = [sound_of(path)[0][0] - times_of(path)[0] for path in (source, out)]
    assert min(times_of(source)[0], sound_of(source)[0][0]) > 1
    assert min(times_of(out)[0], sound_of(out)[0][0]) < 0.1
    assert float(apart[0]) == pytest.approx(float(apart[1]), abs=2e-3)


def test_sound_is_left_out_when_asked_or_where_it_has_no_place(tmp_path: Path) -> None:
    source = write_clip(tmp_path / "in.mkv", film(6, 24, 32), sound="pcm_s16le")
    assert denoise_video(Fading(), source, tmp_path / "out").notes == (
        "the sound is left out: a folder of frames has none",
    )
    with pytest.raises(InputError, match=r"cannot be copied into \.webm; give OUT as \.mkv"):
        denoise_video(Fading(), source, tmp_path / "out.webm")
    assert denoise_video(Fading(), source, tmp_path / "out.webm", sound=False).notes == ()
    assert rest(tmp_path) == {"in.mkv", "out", "out.webm"}


def test_a_rate_for_images(folder: Path, tmp_path: Path) -> None:
    denoise_video(Fading(), folder, tmp_path / "out.mp4", rate=10)
    assert times_of(tmp_path / "out.mp4")[-1] == Fraction(1)


# What cannot be read or written ---------------------------------------------------------------------------------------


def test_a_truncated_video_is_denoised_as_far_as_it_goes(tmp_path: Path) -> None:
    content = write_video(tmp_path / "whole.avi", film(40)).read_bytes()
    (tmp_path / "cut.avi").write_bytes(content[: int(0.6 * len(content))])
    done = denoise_video(Fading(), tmp_path / "cut.avi", tmp_path / "out.mp4")
    assert 10 < done.frames < 35
    assert len(planes_of(done.out)) == done.frames
    assert sum(int(note.split()[0]) for note in done.notes) == 40 - done.frames
    assert done.notes[-1].endswith("frames lost, end: the file is cut short")


def test_lost_frames_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "003.png").write_bytes(b"")
    (folder / "007.png").unlink()
    done = denoise_video(Fading(), folder, tmp_path / "out")
    assert len(rest(tmp_path / "out")) == done.frames == 9
    assert [note.partition(":")[0] for note in done.notes] == [
        "1 frame lost, 003.png",
        "1 frame lost, between 006.png and 008.png",
    ]


def test_what_cannot_be_denoised_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    touch(tmp_path, "empty/.hidden", "no-frames/note.txt", "broken.mp4")
    write_sound(tmp_path / "sound.mp4")
    write_video(tmp_path / "none.avi", film(1)[:0])
    write_images(tmp_path / "sizes", [*film(9), *film(1, height=40)])
    write_images(tmp_path / "two/a", film(1))
    write_images(tmp_path / "two/b", film(1))
    before = rest(tmp_path)
    for name, message in (
        ("missing.mp4", "is no file or folder here"),
        ("empty", "holds no clips"),
        ("no-frames", r"holds no clips .*1 files \(\.txt\)"),
        ("broken.mp4", "cannot be read as a video"),
        ("sound.mp4", "has no video stream"),
        ("none.avi", r"none\.avi"),
        ("sizes", "have several sizes: first 64x48, then 64x40"),
        ("two", r"holds 2 clips; give one of them: .*two/a, .*two/b$"),
    ):
        with pytest.raises(InputError, match=message) as error:
            denoise_video(Fading(), tmp_path / name, tmp_path / "out.mp4")
        assert "\n" not in str(error.value)
    assert rest(tmp_path) == before


def test_a_folder_of_frames_may_hold_a_video_of_them(folder: Path) -> None:
    denoise_video(Fading(), folder, folder / "out.mp4")
    assert denoise_video(Fading(), folder, folder / "again.mp4").frames == 11


def test_options_that_cannot_be(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"layers": 3}, "3 layers are asked for, and the model has 2; give a number from 1 to 2"),
        ({"layers": 0}, "0 layers are asked for"),
        ({"gamma": -0.1}, "gamma is -0.1"),
        ({"gamma": math.nan}, "gamma is nan"),
        ({"gamma": 0.1, "clean": folder}, "both a gamma and a clean video"),
        ({"colour": "chroma"}, "colour is 'chroma'; give luma or channels"),
        ({"stride": 5}, "stride=5 must be between 1 and"),
        ({"overwrite": True, "out": folder}, "would be written over what is read"),
        ({"out": tmp_path / "out.gif"}, r"OUT ends in \.gif"),
    ]
    for options, message in wrong:
        with pytest.raises(InputError, match=message):
            denoise_video(Fading(), folder, options.pop("out", out), **options)
    assert rest(tmp_path) == {"in"}


def test_models_that_denoise_no_pixels(folder: Path, tmp_path: Path) -> None:
    config = BertConfig(vocab_size=20, hidden_size=8, num_attention_heads=2, intermediate_size=8, num_hidden_layers=1)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    measuring = DustForDenoising(DustConfig(num_pixels=16, num_measurements=5, hidden_size=16, num_hidden_layers=1))
    for model, message in (
        (tmp_path / "bert", "no denoiser of patches"),
        (measuring, "takes 5 measurements"),
        (tmp_path / "nothing", "no model at .*nothing"),
    ):
        with pytest.raises(InputError, match=message):
            denoise_video(model, folder, tmp_path / "out")


@pytest.mark.parametrize("name", ["out.mp4", "out"])
@pytest.mark.parametrize("gamma", [None, 0.1])
def test_estimates_that_are_not_finite_are_no_video(
    folder: Path, tmp_path: Path, name: str, gamma: float | None
) -> None:
    with pytest.raises(RunError, match="frame 1 is not finite: the model has diverged"):
        denoise_video(Fading(share=math.nan), folder, tmp_path / name, gamma=gamma)
    assert rest(tmp_path) == {"in"}


def test_names_that_look_like_protocols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = write_clip(tmp_path / "12:30.mkv", film(6, 24, 32), sound="aac")
    assert denoise_video(Fading(), source.name, "13:30.mkv").frames == 6
    assert len(planes_of(tmp_path / "13:30.mkv")) == 6
    assert len(sound_of(tmp_path / "13:30.mkv")) == len(sound_of(source)) > 5


class Stopping(Fading):
    """A denoiser that fails in the middle of a clip."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, pixel_values: torch.Tensor, num_layers: int, output_hidden_states: bool = False) -> Any:
        if self.calls == 2:
            raise self.error
        return super().forward(pixel_values, num_layers, output_hidden_states)


@pytest.mark.parametrize("name", ["out.mp4", "out"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RunError("too hot")])
def test_whatever_stops_it_leaves_what_was_there(folder: Path, tmp_path: Path, name: str, error: BaseException) -> None:
    with pytest.raises(type(error)):
        denoise_video(Stopping(error), folder, tmp_path / name)
    assert rest(tmp_path) == {"in"}
    denoise_video(Fading(), folder, tmp_path / name)
    kept = sorted((tmp_path / name).iterdir()) if name == "out" else (tmp_path / name).read_bytes()
    with pytest.raises(type(error)):
        denoise_video(Stopping(error), folder, tmp_path / name, overwrite=True)
    assert rest(tmp_path) == {"in", name}
    assert kept == (sorted((tmp_path / name).iterdir()) if name == "out" else (tmp_path / name).read_bytes())


def test_a_missing_package_says_what_to_install(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InputError, match=r"takes the package av, .* pip install 'layerdescent\[video\]'"):
        denoise_video(Fading(), folder, tmp_path / "out")
