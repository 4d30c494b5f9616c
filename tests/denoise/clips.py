"""Tiny coloured clips, with sound where it is asked for, and a denoiser whose every number is known."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import av
import numpy as np
import torch
from av.video.stream import VideoStream
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.data.video.films import Frames, film

Planes = list[NDArray[np.uint8]]


class Fading(nn.Module):
    """Each layer goes by `share` of the way to middle grey; a layer's output is no matter of its surroundings."""

    def __init__(self, share: float = 0.0, num_hidden_layers: int = 2, num_frames: int = 4) -> None:
        super().__init__()
        self.share = share
        self.config = SimpleNamespace(num_pixels=16, num_frames=num_frames, num_hidden_layers=num_hidden_layers)
        self.calls = 0
        self.layers_run: set[int] = set()

    def forward(self, pixel_values: Tensor, num_layers: int, output_hidden_states: bool = False) -> Any:
        self.calls += 1
        self.layers_run.add(num_layers)
        states = [0.5 + (pixel_values - 0.5) * (1 - self.share) ** layer for layer in range(num_layers + 1)]
        return SimpleNamespace(logits=states[-1], hidden_states=tuple(states) if output_hidden_states else None)


def coloured(frames: int = 6, height: int = 24, width: int = 32, seed: int = 0) -> Frames:
    """(N, H, W, 3): a smooth texture under a smooth colour, far from the borders of what colours can be."""
    grey = film(frames, height, width, seed).astype(np.float64)
    red, blue = np.linspace(-40, 40, width), np.linspace(40, -40, height)[:, None]
    rgb = np.stack([grey * 0.4 + 76 + red, grey * 0.4 + 76 + 0 * red, grey * 0.4 + 76 + blue], axis=-1)
    return rgb.round().astype(np.uint8)


def write_clip(
    path: Path,
    frames: Frames,
    *,
    codec: str = "libx264",
    container: str | None = None,
    times: Sequence[int] | None = None,
    time_base: Fraction = Fraction(1, 25),
    rate: Fraction = Fraction(25),
    sound: str | None = None,
    sound_from: int = 0,
    turned: int = 0,
    aspect: Fraction | None = None,
) -> Path:
    """A video of grey or coloured frames, lossless as far as its pixels allow; with a second of sound if asked."""
    options = {"qp": "0"} if codec == "libx264" else {}
    with av.open(str(path), "w", format=container) as file:
        stream = cast(VideoStream, file.add_stream(codec, rate=rate, options=options))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = time_base
        if turned:
            stream.set_display_rotation(turned)
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        heard = _sound(file, sound, sound_from) if sound else []
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, "gray" if pixels.ndim == 2 else "rgb24")
            frame.pts = number if times is None else times[number]
            frame.time_base = time_base
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
        file.mux(heard)
    return path


def _sound(file: Any, codec: str, start: int) -> list[Any]:
    stream = file.add_stream(codec, rate=8000)
    stream.codec_context.layout = "mono"
    tone = (9000 * np.sin(np.arange(8000) / 9)).astype(np.int16)[None]
    resampler = av.AudioResampler(stream.codec_context.format, "mono", 8000, stream.codec_context.frame_size or 1000)
    frame = av.AudioFrame.from_ndarray(tone, "s16p", "mono")
    frame.sample_rate, frame.pts, frame.time_base = 8000, 8000 * start, Fraction(1, 8000)
    packets = [packet for part in resampler.resample(frame) for packet in stream.encode(part)]
    return [*packets, *stream.encode()]


def planes_of(path: Path) -> list[Planes]:
    """The planes of every frame, as they are stored."""
    with av.open(str(path)) as file:
        return [planes(frame) for frame in file.decode(video=0)]


def planes(frame: av.VideoFrame) -> Planes:
    return [
        np.frombuffer(bytes(plane), np.uint8).reshape(-1, plane.line_size)[: plane.height, : plane.width]
        for plane in frame.planes
    ]


def rgb_of(path: Path) -> Frames:
    with av.open(str(path)) as file:
        return np.stack([cast(Frames, frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)])


def times_of(path: Path) -> list[Fraction]:
    """When each frame is shown, in seconds."""
    with av.open(str(path)) as file:
        return [cast(int, frame.pts) * cast(Fraction, frame.time_base) for frame in file.decode(video=0)]


def sound_of(path: Path) -> list[tuple[Fraction, bytes]]:
    """When each packet of sound is heard, in seconds, and what is in it."""
    with av.open(str(path)) as file:
        packets = [packet for packet in file.demux(audio=0) if packet.size]
        return [(cast(int, packet.pts) * packet.time_base, bytes(packet)) for packet in packets]


def unit(frames: Frames) -> Tensor:
    return torch.from_numpy(frames.astype(np.float32) / 255)


def rest(folder: Path) -> set[str]:
    """The names of all that is in a folder, hidden or not."""
    return {entry.name for entry in folder.iterdir()}
