"""Frames of a clip, one after the other, as grey bytes; what is damaged is named, never passed on.

Grey means luma, one conversion for every source: Y = 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601) on the full range
0 … 255. Where a file stores luma, as JPEG and nearly all video do, it is taken as stored: of a video's limited range
16 … 235 it is stretched to the full one. Only files that store red, green and blue go through the formula. Decoders
that go through RGB and back differ from this by 1.3 levels on average.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from layerdescent.data.video.layouts import ClipSource, frame_number
from layerdescent.errors import InputError

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream
    from PIL.Image import Image

Grey = NDArray[np.uint8]


class HasShape(Protocol):
    """What reading needs to know of a frame, whatever it is made into."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(H, W)."""


Decoded = TypeVar("Decoded", bound=HasShape)

_LIMITED_RANGE = 1  # FFmpeg's number for luma in 16 … 235
_FULL_RANGE = np.rint(np.clip((np.arange(256) - 16) * (255 / 219), 0, 255)).astype(np.uint8)

_PACKBITS = 32773  # TIFF's number for the compression that UCSD's files have
# Tags of TIFF.
_BITS_PER_SAMPLE, _COMPRESSION, _STRIP_OFFSETS, _ROWS_PER_STRIP, _STRIP_BYTES, _PLANES = 258, 259, 273, 278, 279, 284


@dataclass(frozen=True)
class Flaw:
    """Frames that cannot be used.

    Attributes:
        where: the file, or the place in the video.
        frames: how many.
        reason: what is wrong with them.
    """

    where: str
    frames: int
    reason: str


@contextmanager
def video_packages() -> Iterator[None]:
    """Imports of the optional packages; what to install where one is missing."""
    try:
        yield
    except ImportError as error:
        raise InputError(
            f"reading video takes the package {error.name}, which is not installed; run: "
            "pip install 'layerdescent[video]'"
        ) from None


def read_frames(clip: ClipSource) -> Generator[Grey | Flaw]:
    """The frames of a clip in their order.

    Frames that follow each other here followed each other in front of the camera; where that is not so, a Flaw stands
    between them. Of a video, everything from an error to the next key frame counts as damaged: those frames are built
    on the damaged one, and decoders don't say which of them show it.

    Yields:
        (H, W) grey frames, or what is wrong in their place.

    Raises:
        InputError: nothing can be decoded, frames of several sizes, or a package that is not installed.
    """
    return decoded(clip, grey_of_image, grey_of_video)


def decoded(
    clip: ClipSource, of_image: "Callable[[Image], Decoded]", of_video: "Callable[[VideoFrame], Decoded]"
) -> "Generator[Decoded | Flaw]":
    """As `read_frames`, for whoever wants more of a frame than its grey.

    Args:
        clip: what to read.
        of_image: makes of an image, opened and not yet decoded, what is wanted.
        of_video: makes it of a video's frame.
    """
    size: tuple[int, ...] | None = None
    flaw: Flaw | None = None
    for frame in _images(clip, of_image) if clip.images else _video(clip.path, of_video):
        if isinstance(frame, Flaw):
            flaw = flaw or frame
        elif size is not None and frame.shape != size:
            raise InputError(
                f"the frames of {clip.path} have several sizes: first {_size(size)}, then {_size(frame.shape)} pixels; "
                "cut the clip where the size changes"
            )
        else:
            size = frame.shape
        yield frame
    if size is None:
        reason = "it has no frames" if flaw is None else f"{flaw.where}: {flaw.reason}"
        raise InputError(f"no frame of {clip.path} can be decoded ({reason}); fetch it again, or take it away")


def count_frames(clip: ClipSource) -> int | None:
    """How many frames a clip should have; None where the file does not say."""
    if clip.images:
        return len(clip.images) + sum(missing_numbers([frame_number(path) for path in clip.images]))
    with opened_video(clip.path) as stream:
        return stream.frames or None


def luma(rgb: NDArray[np.uint8]) -> Grey:
    """Grey of red, green and blue: Y = 0.299 R + 0.587 G + 0.114 B, rounded.

    Args:
        rgb: (..., 3), 0 … 255.

    Returns:
        (...), 0 … 255.

    Example:
        >>> luma(np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [7, 7, 7]], dtype=np.uint8))
        array([ 76, 150,  29,   7], dtype=uint8)
    """
    return np.rint(rgb @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[0]}"


# Images ---------------------------------------------------------------------------------------------------------------


def _images(clip: ClipSource, of_image: "Callable[[Image], Decoded]") -> "Iterator[Decoded | Flaw]":
    numbers = [frame_number(path) for path in clip.images]
    if usual_step(numbers) is None:
        yield Flaw("file numbers", 0, "they have no usual step, so gaps cannot be seen: taken as an order only")
    for place, missing in enumerate(missing_numbers(numbers)):
        path = clip.images[place]
        if missing:
            yield Flaw(f"between {clip.images[place - 1].name} and {path.name}", missing, "missing files")
        yield _image(path, of_image)


def missing_numbers(numbers: list[int]) -> list[int]:
    """How many frames are missing before each, by the usual step; a step that is too short counts as one.

    Example:
        >>> missing_numbers([0, 5, 10, 25, 30])
        [0, 0, 0, 2, 0]
    """
    step = usual_step(numbers)
    if step is None:
        return [0] * len(numbers)
    gaps = [later - earlier for earlier, later in pairwise(numbers)]
    return [0, *(0 if gap == step else max(1, gap // step - 1) for gap in gaps)]


def usual_step(numbers: list[int]) -> int | None:
    """By how much the numbers of frames usually grow; None where no step makes up half of them or more.

    Example:
        >>> usual_step([1, 2, 3, 5, 6]), usual_step([0, 5, 10]), usual_step([0, 31, 67, 90])
        (1, 5, None)
    """
    if len(numbers) < 2:
        return 1
    steps = Counter(later - earlier for earlier, later in pairwise(numbers))
    step, times = min(steps.items(), key=lambda item: (-item[1], item[0]))
    return step if 2 * times >= len(numbers) - 1 else None


def _image(path: Path, of_image: "Callable[[Image], Decoded]") -> "Decoded | Flaw":
    with video_packages():
        from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata, which nobody reads here
            with Image.open(path) as image:
                if image.format == "TIFF":
                    _check_packbits(path, image)
                return of_image(image)
    # Pillow reports damage as any of these, by format.
    except (OSError, SyntaxError, ValueError, EOFError, KeyError, Image.DecompressionBombError) as error:
        return Flaw(path.name, 1, str(error).splitlines()[0] if str(error) else type(error).__name__)


def grey_of_image(image: "Image") -> Grey:
    """The grey of an image (H, W).

    Raises:
        ValueError: its pixels have no known white.
    """
    if image.format == "JPEG":
        image.draft("L", None)  # luma as stored, where the file has it
    if image.mode.startswith("I;16"):
        return np.rint(np.asarray(image).astype(np.float64) / 257).astype(np.uint8)
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no known white; save the frames with 8 or 16 bits")
    if image.mode in ("1", "L", "LA"):
        return np.array(image.convert("L"))
    return luma(np.asarray(image.convert("RGB")))


def _check_packbits(path: Path, image: Any) -> None:
    """Whether the strips of a TIFF unpack to what they must.

    Pillow fills what a damaged strip leaves open, and says nothing: the frame has a broken band.
    """
    tags = image.tag_v2
    if tags.get(_COMPRESSION) != _PACKBITS or _STRIP_OFFSETS not in tags or tags.get(_PLANES, 1) != 1:
        return  # tiles, and strips of one colour each, are not what any of the data sets has
    content = path.read_bytes()
    width, height = image.size
    rows = min(tags.get(_ROWS_PER_STRIP, height), height)
    bytes_per_row = (width * sum(tags.get(_BITS_PER_SAMPLE, (1,))) + 7) // 8
    for strip, (start, length) in enumerate(zip(tags[_STRIP_OFFSETS], tags[_STRIP_BYTES], strict=True)):
        wanted = min(rows, height - strip * rows) * bytes_per_row
        got = packbits_length(content[start : start + length])
        if start + length > len(content) or got != wanted:
            raise ValueError(f"strip {strip} unpacks to {got:,} bytes, and it should be {wanted:,}")


def packbits_length(packed: bytes) -> int:
    """How many bytes PackBits data stand for; -1 when they end inside a run.

    A header n says: n + 1 bytes follow as they are (n < 128), or the next byte 257 - n times (n > 128); 128 is nothing.

    Example:
        >>> packbits_length(bytes([2, 7, 8, 9, 254, 5])), packbits_length(bytes([2, 7]))
        (6, -1)
    """
    at = length = 0
    while at < len(packed):
        header = packed[at]
        if header < 128:
            at, length = at + header + 2, length + header + 1
        elif header > 128:
            at, length = at + 2, length + 257 - header
        else:
            at += 1
    return length if at == len(packed) else -1


# Video ----------------------------------------------------------------------------------------------------------------


@contextmanager
def opened_video(path: Path) -> "Iterator[VideoStream]":
    """The stream of moving pictures in a file, while it is open.

    Raises:
        InputError: the file cannot be read, has no moving pictures, or is coded in a way that is not known.
    """
    with video_packages():
        import av
        from av.stream import Disposition

    try:
        # By its whole path: what stands before a colon is a protocol to FFmpeg. Titles of old files are rarely UTF-8.
        container = av.open(str(path.absolute()), metadata_errors="replace")
    except (av.FFmpegError, OSError) as error:
        raise InputError(
            f"{path} cannot be read as a video ({error.strerror or error}); fetch it again, or take it away"
        ) from None
    with container:
        pictures = [stream for stream in container.streams.video if Disposition.attached_pic not in stream.disposition]
        if not pictures:
            kinds = ", ".join(stream.type for stream in container.streams) or "no streams"
            raise InputError(f"{path} has no video stream (it has {kinds}); give a file with moving pictures")
        if cast(Any, pictures[0].codec_context) is None:
            raise InputError(f"FFmpeg here has no decoder for the pictures of {path}; convert it, for example to H.264")
        yield pictures[0]


def _video(path: Path, of_video: "Callable[[VideoFrame], Decoded]") -> "Iterator[Decoded | Flaw]":
    with video_packages():
        import av

    with opened_video(path) as stream:
        damaged: str | None = None  # why nothing is used before the next key frame
        good = bad = 0
        packets = cast("InputContainer", stream.container).demux(stream)
        while True:
            try:
                packet = next(packets)
                frames = packet.decode()
            except StopIteration:
                break
            except av.FFmpegError as error:
                damaged, bad = f"cannot be decoded ({error.strerror or error})", bad + 1
                yield Flaw(f"after frame {good}", 1, damaged)
                if isinstance(error, av.EOFError):
                    break
                continue
            for frame in frames:
                if frame.is_corrupt or packet.is_corrupt:
                    damaged = "the data are damaged"
                elif frame.key_frame:
                    damaged = None
                if damaged:
                    bad += 1
                    yield Flaw(f"after frame {good}", 1, damaged)
                else:
                    good += 1
                    yield of_video(frame)
        if stream.frames > good + bad:
            yield Flaw("end", stream.frames - good - bad, "the file is cut short")


def grey_of_video(frame: "VideoFrame") -> Grey:
    """The grey of a video's frame (H, W)."""
    if frame.format.is_rgb or frame.format.has_palette:
        return luma(cast(Grey, frame.to_ndarray(format="rgb24")))
    grey = cast(Grey, frame.to_ndarray(format="gray"))
    if frame.format.name.startswith("gray") and frame.color_range == _LIMITED_RANGE:
        return _FULL_RANGE[grey]  # FFmpeg takes grey for full, whatever the file says of it
    return grey
