"""Frames in and out: against a plain loop over patches, and exactly the input where the model does nothing."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from layerdescent.errors import InputError, RunError
from layerdescent.models import VideoDenoiser
from tests.models.unrolled.tiny import make

Array = NDArray[np.float32]


class Scaled(nn.Module):
    """A model of patches that multiplies by a number, and counts what it is given."""

    def __init__(self, side: int = 4, frames: int = 4, factor: float = 1.0) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_pixels=side * side, num_frames=frames, num_measurements=None)
        self.factor = factor
        self.given: list[tuple[int, ...]] = []
        self.was_training: list[bool] = []

    def forward(self, pixel_values: Tensor, num_layers: int | None, output_hidden_states: bool) -> Any:
        self.given.append(tuple(pixel_values.shape))
        self.was_training.append(self.training)
        return SimpleNamespace(logits=self.factor * pixel_values, hidden_states=(pixel_values, 2 * pixel_values))


def clip(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60)
@given(
    side=st.integers(1, 6),
    T=st.integers(1, 11),
    H=st.integers(1, 15),
    W=st.integers(1, 15),
    frames=st.integers(1, 6),
    data=st.data(),
)
def test_a_model_that_does_nothing_gives_the_input_back(
    side: int, T: int, H: int, W: int, frames: int, data: st.DataObject
) -> None:
    strides = {
        "stride": data.draw(st.integers(1, side)),
        "frame_stride": data.draw(st.integers(1, frames)),
        "batch_size": data.draw(st.integers(1, 20)),
    }
    video = clip(2, T, H, W)
    found = VideoDenoiser(Scaled(side, frames), **strides)(video)
    assert (found.dtype, found.shape) == (torch.float32, video.shape)
    torch.testing.assert_close(found, video, rtol=0, atol=2e-6)


def test_a_real_model_without_layers_gives_the_input_back() -> None:
    video = clip(1, 9, 10, 7)
    torch.testing.assert_close(VideoDenoiser(make("dust"))(video, layers=0), video, rtol=0, atol=2e-6)


def by_loops(model: Any, video: Array, stride: int, frames: int, frame_stride: int) -> Array:
    """Every patch of every window by itself; numpy's own reflection, and every weight written out."""
    side = int(np.sqrt(model.config.num_pixels))
    T, H, W = video.shape
    margin = side - stride
    rows, columns = ((n + 2 * margin - side + stride - 1) // stride * stride + side - n - 2 * margin for n in (H, W))
    padded = np.pad(video, ((0, 0), (margin, margin + rows), (margin, margin + columns)), mode="reflect")
    sums, weights = np.zeros(padded.shape), np.zeros(padded.shape)
    length = min(frames, T)
    starts = sorted({*range(0, T - length + 1, frame_stride), T - length})

    def taper(n: int) -> NDArray[np.float64]:
        return np.sin(np.pi * (np.arange(n) + 0.5) / n) ** 2

    weight = taper(length)[:, None, None] * taper(side)[None, :, None] * taper(side)[None, None, :]
    for t in starts:
        for y in range(0, padded.shape[1] - side + 1, stride):
            for x in range(0, padded.shape[2] - side + 1, stride):
                place = (slice(t, t + length), slice(y, y + side), slice(x, x + side))
                patch = torch.from_numpy(padded[place].reshape(1, length, side * side))
                with torch.no_grad():
                    clean = model(patch).logits.numpy().reshape(weight.shape)
                sums[place] += weight * clean
                weights[place] += weight
    return (sums / weights)[:, margin : margin + H, margin : margin + W].astype(np.float32)


@pytest.mark.parametrize("kind", ["dust", "transformer"])
@pytest.mark.parametrize(
    ("T", "H", "W", "stride", "frames", "frame_stride"),
    [(4, 8, 8, 2, 4, 2), (7, 9, 6, 3, 4, 3), (3, 5, 11, 4, 5, 1), (9, 2, 1, 1, 4, 4)],
)
def test_patches_are_averaged_as_a_plain_loop_does(
    kind: str, T: int, H: int, W: int, stride: int, frames: int, frame_stride: int
) -> None:
    model = make(kind, dtype=torch.float32, num_hidden_layers=2)
    video = clip(T, H, W)
    denoiser = VideoDenoiser(model, stride=stride, num_frames=frames, frame_stride=frame_stride, batch_size=7)
    expected = by_loops(model, video.numpy(), stride, frames, frame_stride)
    np.testing.assert_allclose(denoiser(video[None])[0], expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(expected, video, atol=1e-2), "the model must change something, or this shows nothing"


def test_by_default_windows_are_as_long_as_in_training_and_overlap_by_half() -> None:
    model = Scaled(side=4, frames=6)
    VideoDenoiser(model)(clip(1, 12, 8, 8))
    assert len(model.given) == 3
    assert {shape[1:] for shape in model.given} == {(6, 16)}
    assert {shape[0] for shape in model.given} == {25}  # 4 margins of 2, so 12 x 12: 5 x 5 patches 2 apart


@pytest.mark.parametrize("batch_size", [1, 3, 8, 1000])
def test_no_forward_pass_gets_more_patches_than_allowed(batch_size: int) -> None:
    model = Scaled(side=4, frames=2, factor=2.0)
    video = clip(1, 3, 13, 17)
    torch.testing.assert_close(VideoDenoiser(model, batch_size=batch_size)(video), 2 * video)
    assert max(shape[0] for shape in model.given) <= batch_size


def test_a_stream_gives_what_a_call_gives_and_reads_no_further_than_it_must() -> None:
    denoiser = VideoDenoiser(make("dust", dtype=torch.float32), num_frames=4, frame_stride=2)
    video, read = clip(11, 6, 5), []

    def frames() -> Any:
        for number, frame in enumerate(video):
            read.append(number)
            yield frame

    found = []
    for number, frame in enumerate(denoiser.stream(frames())):
        found.append(frame)
        assert len(read) <= number + 4 + 2
    assert torch.equal(torch.stack(found), denoiser(video[None])[0])
    assert list(denoiser.stream([])) == []


def test_every_layer_in_one_pass_is_each_layer_by_itself() -> None:
    model = make("dust", dtype=torch.float32)
    denoiser, video = VideoDenoiser(model), clip(6, 7, 5)
    every = torch.stack(list(denoiser.stream(video, every_layer=True)))
    assert every.shape == (6, 4, 7, 5)
    for layer in range(4):
        torch.testing.assert_close(every[:, layer], denoiser(video[None], layers=layer)[0])
    two = torch.stack(list(denoiser.stream(video, 2, every_layer=True)))
    torch.testing.assert_close(two, every[:, :3])


def test_the_model_is_asked_in_eval_mode_and_left_as_it_was() -> None:
    for training in (True, False):
        model = Scaled().train(training)
        VideoDenoiser(model)(clip(1, 2, 4, 4))
        assert not any(model.was_training)
        assert model.training is training


def test_frames_in_other_precisions_come_out_in_fp32() -> None:
    video = clip(1, 2, 4, 4)
    for dtype in (torch.float64, torch.float16):
        found = VideoDenoiser(make("ut"))(video.to(dtype))
        assert found.dtype == torch.float32


@torch.no_grad()
def test_saved_and_loaded_it_does_the_same(tmp_path: Path) -> None:
    denoiser, video = VideoDenoiser(make("ut", dtype=torch.float32), stride=3), clip(1, 5, 6, 7)
    denoiser.save(tmp_path / "model")
    again = VideoDenoiser.load(tmp_path / "model", stride=3)
    torch.testing.assert_close(again(video), denoiser(video))


def test_a_checkpoint_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no model at .*nowhere: give a folder with config\.json"):
        VideoDenoiser.load(tmp_path / "nowhere")
    VideoDenoiser(make("ut")).save(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    weights = (tmp_path / "cut" / "model.safetensors").read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(RunError, match="cut cannot be loaded") as error:
        VideoDenoiser.load(tmp_path / "cut")
    assert "\n" not in str(error.value)
    config = (tmp_path / "whole" / "config.json").read_text(encoding="utf-8")
    deeper = config.replace('"num_hidden_layers": 3', '"num_hidden_layers": 4')
    (tmp_path / "whole" / "config.json").write_text(deeper, encoding="utf-8")
    with pytest.raises(RunError, match=r"lacks weights \(layers\.3"):
        VideoDenoiser.load(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 5}, "stride=5 must be between 1 and the patch's side, 4"),
        ({"stride": 0}, "stride=0"),
        ({"num_frames": 0}, "num_frames=0 must be at least 1"),
        ({"num_frames": 3, "frame_stride": 4}, "frame_stride=4 must be between 1 and num_frames, 3"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        VideoDenoiser(Scaled(), **options)


def test_models_and_frames_that_cannot_be_are_named() -> None:
    with pytest.raises(InputError, match="takes 10 measurements of a patch, not its 16 pixels"):
        VideoDenoiser(make("ut-measured"))
    with pytest.raises(InputError, match="num_pixels=15 makes no square patch"):
        VideoDenoiser(make("ut", num_pixels=15))
    denoiser = VideoDenoiser(Scaled())
    for shape in ((2, 4, 4), (1, 0, 4, 4)):
        with pytest.raises(InputError, match=r"frames must be \(B, T, H, W\)"):
            denoiser(torch.rand(shape))
    with pytest.raises(InputError, match=r"frames are torch\.uint8: give floating-point values"):
        denoiser(torch.zeros(1, 2, 4, 4, dtype=torch.uint8))
    for later in (1, 5):
        frames = [torch.rand(4, 4)] * later + [torch.rand(4, 5)]
        with pytest.raises(InputError, match=r"all of one size, but there are \(4, 4\) and \(4, 5\)"):
            list(denoiser.stream(frames))
