"""Writing what comes out: a video file or a folder of frames, whole or not at all."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from errno import ENOSPC
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from layerdescent.data.video.decode import Grey
from layerdescent.denoise.pictures import LIMITED_RANGE, UNSPECIFIED, Details, Picture
from layerdescent.errors import InputError, RunError
from layerdescent.files import replaced

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import OutputContainer
    from av.video.stream import VideoStream

Write = Callable[[Picture], None]


@dataclass(frozen=True)
class Format:
    """How files of a suffix are written.

    Attributes:
        container: FFmpeg's name of the container.
        codec: FFmpeg's name of the encoder.
        options: of the encoder; all are set so that next to nothing is lost.
        own_times: whether frames keep their time stamps, or are evenly spaced.
    """

    container: str
    codec: str
    options: dict[str, str] = field(default_factory=dict)
    own_times: bool = True


_H264 = {"crf": "12", "preset": "veryfast"}
FORMATS = {
    ".mp4": Format("mp4", "libx264", _H264),
    ".m4v": Format("mp4", "libx264", _H264),
    ".mov": Format("mov", "libx264", _H264),
    ".mkv": Format("matroska", "libx264", _H264),
    ".webm": Format("webm", "libvpx-vp9", {"crf": "12", "b": "0", "deadline": "good", "cpu-used": "4"}),
    ".avi": Format("avi", "mpeg4", {"qmin": "2", "qmax": "2", "flags": "+qscale", "global_quality": "236"}, False),
}


def check_target(out: Path, *inputs: Path, overwrite: bool) -> None:
    """Whether something may be written to `out`, before any work is done for it.

    Raises:
        InputError: a suffix that nothing is known of; something is there already and is to stay; it is the input.
    """
    if out.suffix and out.suffix.lower() not in FORMATS:
        raise InputError(
            f"OUT ends in {out.suffix}; give a video file that ends in {', '.join(FORMATS)}, or a name without a "
            "suffix for a folder of PNG frames"
        )
    same = next((path for path in inputs if path.resolve() == out.resolve()), None)
    if same is not None:
        raise InputError(f"{out} would be written over what is read from it; give OUT another name")
    there = out.exists() or out.is_symlink()  # a link may lead nowhere
    if not there or (is_folder(out) and out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise InputError(f"{out} is there already; give OUT another name, or --overwrite")
    if out.is_dir() != is_folder(out):
        kinds = ("a folder", "a file") if out.is_dir() else ("a file", "a folder")
        raise InputError(f"{out} is {kinds[0]}, and OUT would be {kinds[1]}; give it another name")
    if out.is_dir():
        frames = {entry.name for entry in out.iterdir() if entry.suffix.lower() == ".png" and entry.is_file()}
        other = next((entry.name for entry in out.iterdir() if entry.name not in frames), None)
        if other is not None:
            raise InputError(f"{out} holds more than PNG frames ({other}), so it is not replaced; give another OUT")


def is_folder(out: Path) -> bool:
    """Whether OUT is to be a folder of frames."""
    return not out.suffix


def padded(out: Path, size: tuple[int, ...]) -> tuple[int, int]:
    """Height and width as they are written: those of a video are even, since its colours have half the resolution.

    Example:
        >>> padded(Path("out.mp4"), (47, 64)), padded(Path("frames"), (47, 64))
        ((48, 64), (47, 64))
    """
    height, width = size
    return (height, width) if is_folder(out) else (height + height % 2, width + width % 2)


def written(out: Path, details: Details, size: tuple[int, ...], sound: bool) -> AbstractContextManager[Write]:
    """What writes frame after frame; `out` is there when the block ends without an error, and not before.

    Args:
        out: a video file or a folder, by its suffix.
        details: what the video is to say of itself.
        size: height and width of the pictures.
        sound: whether the sound is copied, where there is some.

    Raises:
        InputError: the container does not take that sound.
        RunError: no space is left, or something else keeps `out` from being written.
    """
    return _frames(out, details) if is_folder(out) else _video(out, details, size, sound)


@contextmanager
def _saying(out: Path) -> Iterator[None]:
    """One line for what the system and FFmpeg say."""
    from av import FFmpegError

    try:
        yield
    except (OSError, FFmpegError) as error:
        if getattr(error, "errno", None) == ENOSPC:
            raise RunError(
                f"no space is left on the device for {out}: nothing was written there; free some, or choose another OUT"
            ) from None
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{out} cannot be written ({reason}): nothing was left there; choose another OUT") from None


# A folder -------------------------------------------------------------------------------------------------------------


@contextmanager
def _frames(out: Path, details: Details) -> Iterator[Write]:
    from PIL import Image

    temporary, old = (out.with_name(f".{out.name}.{os.getpid()}.{word}") for word in ("tmp", "old"))
    count = 0

    def write(picture: Picture) -> None:
        nonlocal count
        count += 1
        frame = to_frame(picture, details.colours[0])
        grey = frame.format.name == "gray"
        pixels = cast(Grey, frame.to_ndarray(format="gray" if grey else "rgb24"))
        Image.fromarray(pixels).save(temporary / f"{picture.name or f'{count:06d}'}.png")

    with _saying(out):
        try:
            shutil.rmtree(temporary, ignore_errors=True)  # of a killed process that had this one's number
            temporary.mkdir(parents=True)
            yield write
            _take_the_place(temporary, out, old)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _take_the_place(new: Path, out: Path, old: Path) -> None:
    """Put a folder where another one may be, which is at `old` meanwhile, and goes back if that fails."""
    try:
        if out.exists():
            out.rename(old)
        new.rename(out)
    except BaseException:
        if old.exists() and not out.exists():
            old.rename(out)
        raise
    if old.is_symlink():  # the folder that it leads to is not ours
        old.unlink()
    else:
        shutil.rmtree(old, ignore_errors=True)


# A video --------------------------------------------------------------------------------------------------------------


@contextmanager
def _video(out: Path, details: Details, size: tuple[int, ...], sound: bool) -> Iterator[Write]:
    import av

    form = FORMATS[out.suffix.lower()]
    with _saying(out), replaced(out) as temporary:
        container = av.open(str(temporary.absolute()), "w", format=form.container)  # a colon would end a protocol
        try:
            stream = _stream(container, form, details, padded(out, size))
            tick = stream.codec_context.time_base
            copied = _Sound(container, details if sound else replace(details, sound=None), out)
            container.start_encoding()
            last = -1

            def write(picture: Picture) -> None:
                nonlocal last
                time = cast(int, picture.time) * details.time_base
                frame = to_video_frame(picture, details.colours[0])
                last = max(round(time / tick), last + 1)
                frame.pts, frame.time_base = last, tick
                container.mux(stream.encode(frame))
                copied.until(time)

            yield write
            container.mux(stream.encode())
            copied.until(None)
        except BaseException:
            with suppress(Exception):  # what went wrong before is the news
                container.close()
            raise
        container.close()


def _stream(container: "OutputContainer", form: Format, details: Details, size: tuple[int, int]) -> "VideoStream":
    try:
        stream = cast("VideoStream", container.add_stream(form.codec, rate=details.rate, options=form.options))
    except ValueError:
        raise InputError(
            f"FFmpeg has no encoder {form.codec} here; write a folder of frames, or another suffix"
        ) from None
    stream.height, stream.width = size
    stream.pix_fmt = "yuv420p"
    codec = stream.codec_context
    codec.time_base = details.time_base if form.own_times else _even_time_base(details.rate)
    codec.sample_aspect_ratio = details.aspect
    codec.color_range = LIMITED_RANGE
    codec.colorspace, codec.color_primaries, codec.color_trc = details.colours
    return stream


def _even_time_base(rate: Fraction) -> Fraction:
    """From one evenly spaced frame to the next, in seconds; MPEG-4 counts a second in 65,535 ticks at most."""
    return 1 / rate.limit_denominator(max(1, min(1001, int(65535 / rate))))


class _Sound:
    """The sound of a file, copied packet by packet as the frames' times come to it."""

    def __init__(self, container: "OutputContainer", details: Details, out: Path) -> None:
        self.container, self.start = container, details.start
        self.source: Any = None
        self.next: Any = None
        if details.sound is None:
            return
        import av

        self.source = av.open(str(details.sound.absolute()), metadata_errors="replace")
        self.streams: dict[int, Any] = {}
        for stream in self.source.streams.audio:
            try:
                added = container.add_stream_from_template(stream)
            except ValueError:
                self.source.close()
                raise InputError(
                    f"the sound of {details.sound} ({stream.name or stream.type}) cannot be copied into {out.suffix}; "
                    "give OUT as .mkv, which takes any, or leave the sound out with --no-sound"
                ) from None
            added.metadata.update(stream.metadata)
            self.streams[stream.index] = added
        self.packets = self.source.demux(*self.source.streams.audio)

    def until(self, time: Fraction | None) -> None:
        """Copy what is not later than a time in seconds; everything that is left, without one."""
        from av import FFmpegError

        while self.source is not None:
            try:
                packet = self.next or next(self.packets)
            except (StopIteration, FFmpegError):  # the frames say where a file is cut short
                self.source.close()
                self.source = None
                return
            self.next = None
            if packet.dts is None:  # the end of a stream, or nothing that could be placed
                continue
            start = round(self.start / packet.time_base)
            if time is not None and (packet.dts - start) * packet.time_base > time:
                self.next = packet
                return
            packet.dts -= start
            packet.pts = packet.dts if packet.pts is None else packet.pts - start
            packet.stream = self.streams[packet.stream.index]
            self.container.mux(packet)


# Pictures as frames ---------------------------------------------------------------------------------------------------


def to_frame(picture: Picture, matrix: int = UNSPECIFIED) -> "VideoFrame":
    """A picture as a frame of bytes; values below 0 or above 1 become black or white.

    Args:
        picture: grey, luma with its colour, or red, green and blue.
        matrix: FFmpeg's number of the matrix that the colour was made with.
    """
    from av import VideoFrame

    if picture.chroma is None:
        codes = _bytes(picture, 0, 255)
        if len(codes) == 1:
            return VideoFrame.from_ndarray(codes[0], "gray")
        return VideoFrame.from_ndarray(np.ascontiguousarray(np.moveaxis(codes, 0, -1)), "rgb24")
    frame = VideoFrame.from_ndarray(np.concatenate([_bytes(picture, 16, 219), picture.chroma]), "yuv444p")
    frame.color_range, frame.colorspace = LIMITED_RANGE, matrix
    return frame


def to_video_frame(picture: Picture, matrix: int = UNSPECIFIED) -> "VideoFrame":
    """A picture as most videos store it: limited range, colours at half the resolution, even sizes.

    Args:
        picture: grey, luma with its colour, or red, green and blue.
        matrix: FFmpeg's number of the matrix that the colour was, or is to be, made with.
    """
    from av import VideoFrame

    picture = _even(picture)
    if picture.chroma is None:
        return to_frame(picture).reformat(format="yuv420p", dst_colorspace=matrix, dst_color_range="MPEG")
    height, width = picture.shape
    blocks = picture.chroma.reshape(2, height // 2, 2, width // 2, 2)
    halved = np.rint(blocks.mean(axis=(2, 4))).astype(np.uint8)  # of repeated values exactly those
    stored = np.concatenate([_bytes(picture, 16, 219).ravel(), halved.ravel()]).reshape(height * 3 // 2, width)
    frame = VideoFrame.from_ndarray(stored, "yuv420p")
    frame.color_range, frame.colorspace = LIMITED_RANGE, matrix
    return frame


def beside(left: Picture, right: Picture) -> Picture:
    """Two pictures of one size as one, with the time and the name of the second."""
    chroma = None
    if left.chroma is not None and right.chroma is not None:
        chroma = np.concatenate([left.chroma, right.chroma], axis=-1)
    return replace(right, values=torch.cat([left.values, right.values], dim=-1), chroma=chroma)


def _bytes(picture: Picture, black: int, span: int) -> Grey:
    values = picture.values.clamp(0, 1)
    return cast(Grey, (black + span * values).round().to(torch.uint8).numpy())


def _even(picture: Picture) -> Picture:
    """With an even number of rows and columns: the last one is repeated."""
    more = [(0, length % 2) for length in picture.shape]
    if not any(after for _, after in more):
        return picture
    values = torch.from_numpy(np.pad(picture.values.numpy(), [(0, 0), *more], mode="edge"))
    chroma = None if picture.chroma is None else np.pad(picture.chroma, [(0, 0), *more], mode="edge")
    return replace(picture, values=values, chroma=chroma)
