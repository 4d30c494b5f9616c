"""Frames of a clip as a denoiser takes them, with the colour and the time that they had."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from layerdescent.data.video.clips import to_unit
from layerdescent.data.video.decode import Flaw, Grey, decoded, grey_of_image, grey_of_video, opened_video
from layerdescent.data.video.layouts import ClipSource
from layerdescent.errors import InputError

if TYPE_CHECKING:
    from av import VideoFrame
    from PIL.Image import Image

Colour = Literal["luma", "channels"]

# FFmpeg's numbers.
LIMITED_RANGE = 1
UNSPECIFIED = 2
_RGB, _BT601 = 0, 6

_USUAL_RATE = 25


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """One frame.

    Attributes:
        values: (C, H, W) in [0, 1], what a denoiser works on: luma alone, or red, green and blue.
        chroma: (2, H, W) bytes, the two colour differences that luma leaves open, as videos store them (16 … 240, 128
            is none); None where the frame is grey, or where the values are red, green and blue.
        time: time stamp, in ticks of the clip's time base.
        name: the stem of the file that it came from; None out of a video.
    """

    values: Tensor
    chroma: Grey | None = None
    time: int | None = None
    name: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(H, W)."""
        return tuple(self.values.shape[-2:])


@dataclass(frozen=True, kw_only=True)
class Details:
    """What a video says of itself beside its frames.

    Attributes:
        rate: frames a second.
        time_base: a tick of its time stamps, in seconds.
        start: where its time stamps start, in seconds.
        aspect: width to height of a pixel.
        colours: FFmpeg's numbers of the matrix, the primaries and the transfer function of its colours.
        frames: how many there should be; None where nothing says so.
        sound: the file, where it has sound.
    """

    rate: Fraction
    time_base: Fraction
    start: Fraction = Fraction(0)
    aspect: Fraction = Fraction(1)
    colours: tuple[int, int, int] = (_BT601, UNSPECIFIED, UNSPECIFIED)
    frames: int | None = None
    sound: Path | None = None

    @property
    def ticks(self) -> int:
        """Ticks from one frame to the next."""
        return max(1, round(1 / (self.rate * self.time_base)))


def details_of(clip: ClipSource, rate: float | None = None) -> Details:
    """Look at a clip without decoding it.

    Args:
        clip: a video, or a folder of frames.
        rate: frames a second of a folder, which does not say; 25 by default.

    Raises:
        InputError: a video has no moving pictures, or a rate of its own beside the one given.
    """
    if clip.images:
        if rate is not None and not 0.001 <= rate <= 1000:
            raise InputError(f"the rate is {rate}; give frames a second, from 0.001 to 1000")
        per_second = Fraction(str(rate or _USUAL_RATE)).limit_denominator(1001)
        return Details(rate=per_second, time_base=1 / per_second, frames=len(clip.images))
    if rate is not None:
        raise InputError(f"a rate of {rate:g} is given, and {clip.path} has its own: rates are for folders of frames")
    with opened_video(clip.path) as stream:
        container, codec = stream.container, stream.codec_context
        start = Fraction(cast(Any, container).start_time or 0, 1_000_000)
        # Such codes are of files without a matrix; our own conversion from red, green and blue has one.
        matrix = _BT601 if codec.colorspace == _RGB else codec.colorspace
        return Details(
            rate=stream.average_rate or stream.guessed_rate or Fraction(_USUAL_RATE),
            time_base=cast(Fraction, stream.time_base),
            # What broadcasts and discs start with; anything else is a matter of the streams towards each other.
            start=max(Fraction(0), start),
            aspect=stream.sample_aspect_ratio or Fraction(1),
            colours=(matrix, codec.color_primaries, codec.color_trc),
            frames=stream.frames or None,
            sound=clip.path if container.streams.audio else None,
        )


def pictures(clip: ClipSource, details: Details, colour: Colour, flaws: list[Flaw]) -> Iterator[Picture]:
    """The frames of a clip, decoded when they are asked for.

    Time stamps grow from frame to frame, whatever the file says, and begin with its first stream; where it says
    nothing, frames are evenly spaced and lost ones leave a gap.

    Args:
        clip: what to read.
        details: of the clip.
        colour: "luma" for one channel and the colour beside it, "channels" for red, green and blue.
        flaws: what cannot be used is appended here.

    Raises:
        InputError: nothing can be decoded, frames of several sizes, or some grey and some coloured where each channel
            is a video.
    """
    of_image: Callable[[Image], Picture] = _luma_of_image if colour == "luma" else _channels_of_image
    of_video: Callable[[VideoFrame], Picture] = _luma_of_video if colour == "luma" else _channels_of_video
    start = round(details.start / details.time_base)
    last, following, channels = -1, 0, None
    for item in decoded(clip, of_image, of_video):
        if isinstance(item, Flaw):
            flaws.append(item)
            following += item.frames * details.ticks
            continue
        channels = channels or len(item.values)
        if len(item.values) != channels:
            raise InputError(
                f"some frames of {clip.path} are grey and some have colour; denoise their luma, or save all in one way"
            )
        last = following if item.time is None else max(item.time - start, last + 1)
        following = last + details.ticks
        yield replace(item, time=last)


# Images ---------------------------------------------------------------------------------------------------------------


def _luma_of_image(image: "Image") -> Picture:
    from av import VideoFrame

    if _is_grey(image):
        return Picture(values=_values(grey_of_image(image)), name=_stem(image))
    if image.format == "JPEG":
        image.draft("YCbCr", None)  # luma as stored
    rgb = np.asarray(image.convert("RGB"))
    grey = np.asarray(image)[..., 0] if image.mode == "YCbCr" else grey_of_image(image)
    chroma = _chroma(VideoFrame.from_ndarray(rgb, "rgb24"))
    return Picture(values=_values(grey), chroma=chroma, name=_stem(image))


def _channels_of_image(image: "Image") -> Picture:
    if _is_grey(image):
        return _luma_of_image(image)
    return Picture(values=_values(np.moveaxis(np.asarray(image.convert("RGB")), -1, 0)), name=_stem(image))


def _is_grey(image: "Image") -> bool:
    return image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;16")


def _stem(image: "Image") -> str:
    return Path(cast(Any, image).filename).stem


# Video ----------------------------------------------------------------------------------------------------------------


def _luma_of_video(frame: "VideoFrame") -> Picture:
    grey = _upright(grey_of_video(frame), frame)
    chroma = None if frame.format.name.startswith("gray") else _upright(_chroma(frame), frame)
    return Picture(values=_values(grey), chroma=chroma, time=frame.pts)


def _channels_of_video(frame: "VideoFrame") -> Picture:
    if frame.format.name.startswith("gray"):
        return _luma_of_video(frame)
    rgb = np.moveaxis(cast(Grey, frame.to_ndarray(format="rgb24")), -1, 0)
    return Picture(values=_values(_upright(rgb, frame)), time=frame.pts)


def _chroma(frame: "VideoFrame") -> Grey:
    """(2, H, W): the colour differences for each pixel.

    Where a file has them at half the resolution they are repeated, by ourselves: FFmpeg's way depends on where the file
    says that its colours lie, and cannot be undone exactly.
    """
    form, (height, width) = frame.format, (frame.height, frame.width)
    if form.chroma_width(width) == width and form.chroma_height(height) == height:
        return cast(Grey, frame.reformat(format="yuv444p", dst_color_range="MPEG").to_ndarray())[1:]
    halved = frame.reformat(format="yuv420p", dst_color_range="MPEG")
    rows = [np.frombuffer(bytes(plane), np.uint8).reshape(-1, plane.line_size) for plane in halved.planes[1:]]
    stored = np.stack([row[: (height + 1) // 2, : (width + 1) // 2] for row in rows])
    return stored.repeat(2, axis=1).repeat(2, axis=2)[:, :height, :width]


def _upright(planes: Grey, frame: "VideoFrame") -> Grey:
    """Planes (…, H, W) as a player shows them: telephones store how they were held beside the frames."""
    return np.rot90(planes, round(frame.rotation / 90), axes=(-2, -1))


def _values(grey: Grey) -> Tensor:
    """(C, H, W) in [0, 1] of bytes (H, W) or (C, H, W)."""
    values = torch.from_numpy(np.ascontiguousarray(to_unit(grey)))
    return values[None] if values.ndim == 2 else values
