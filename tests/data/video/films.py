"""Tiny clips as files: what the tests of video data write before they read it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray
from PIL import Image

Frames = NDArray[np.uint8]


def film(frames: int = 12, height: int = 48, width: int = 64, seed: int = 0) -> Frames:
    """(N, H, W) grey bytes from black to white: a smooth texture that moves by two pixels a frame."""
    generator = np.random.default_rng(seed)
    coarse = generator.random((height // 8 + 2, (width + 2 * frames) // 8 + 2))
    texture = np.kron(coarse, np.ones((8, 8)))
    for axis in (0, 1):  # soft borders, so that codecs have little to lose
        texture = np.mean([np.roll(texture, shift, axis) for shift in range(-3, 4)], axis=0)
    texture = texture[:height, : width + 2 * frames]
    texture = (texture - texture.min()) / (texture.max() - texture.min()) * 255
    return np.stack([texture[:, 2 * n : 2 * n + width] for n in range(frames)]).round().astype(np.uint8)


def write_video(
    path: Path,
    frames: Frames,
    codec: str = "mpeg4",
    pix_fmt: str = "yuv420p",
    options: Mapping[str, str] | None = None,
    gop: int = 12,
    color_range: int = 0,
) -> Path:
    """A video of (N, H, W) grey or (N, H, W, 3) colour frames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = cast(VideoStream, container.add_stream(codec, rate=25, options=dict(options or {})))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pix_fmt
        stream.gop_size = gop
        stream.codec_context.color_range = color_range
        stream.max_b_frames = 0
        stream.bit_rate = 4_000_000
        for pixels in frames:
            given = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), "gray" if pixels.ndim == 2 else "rgb24")
            container.mux(stream.encode(given))
        container.mux(stream.encode())
    return path


def write_images(
    folder: Path, frames: Iterable[Frames], name: str = "{:03d}.png", first: int = 1, step: int = 1, **options: Any
) -> list[Path]:
    """One image a frame, numbered."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, pixels in enumerate(frames):
        paths.append(folder / name.format(first + step * number))
        Image.fromarray(pixels).save(paths[-1], **options)
    return paths


def touch(folder: Path, *names: str) -> None:
    """Empty files, for what looks at names only."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
