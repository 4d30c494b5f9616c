"""Clips decoded once: grey bytes in a cache folder, mapped into memory afterwards.

Each clip is two files. `NAME-KEY.npy` has the frames, `NAME-KEY.json` says which of them follow each other and what
was wrong with the others; it is written last, so a clip without it is not there yet. The key depends on path, size and
time of change of everything that was read, and on the options.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from layerdescent.data.packages import cache_folder
from layerdescent.data.video.clips import Clip, merged
from layerdescent.data.video.decode import Flaw, Grey, read_frames
from layerdescent.data.video.layouts import ClipSource
from layerdescent.data.video.resize import Resize
from layerdescent.errors import InputError, RunError
from layerdescent.files import replaced, write_json

_VERSION = 1  # of what is stored; a change of the decoding makes it one more
_HEADER_BYTES = 128  # room for the header of an .npy file, whose shape is known only at the end


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """What is done to the frames of a clip on their way into the cache."""

    resize: Resize = field(default_factory=Resize)
    max_frames: int | None = None

    def __post_init__(self) -> None:
        if self.max_frames is not None and self.max_frames < 1:
            raise InputError(f"at most {self.max_frames} frames of a clip are asked for; give 1 or more")


class ClipCache:
    """Decoded clips in a folder.

    Args:
        folder: where; by default `default_cache_folder()`.
        options: what is done to the frames.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from layerdescent.data.video.layouts import find_clips
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for number in range(3):
        ...         Image.new("L", (8, 6), 40 * number).save(Path(folder, f"{number}.png"))
        ...     [source] = find_clips(folder).clips
        ...     clip = ClipCache(Path(folder, "cache")).clip(source)
        ...     clip.pixels.shape, clip.pixels[:, 0, 0].tolist(), clip.stretches
        ((3, 6, 8), [0, 40, 80], ((0, 3),))
    """

    def __init__(self, folder: Path | None = None, options: DecodeOptions | None = None) -> None:
        self.folder = (folder or default_cache_folder()).expanduser()
        self.options = options or DecodeOptions()

    def has(self, source: ClipSource) -> bool:
        """Whether a clip is there and whole."""
        return self._cached(source, self._path(source)) is not None

    def clip(self, source: ClipSource, on_frame: Callable[[int], object] | None = None) -> Clip:
        """A clip, decoded when it is not in the cache yet, or damaged there.

        Args:
            source: where it is.
            on_frame: called with 1 after every frame that is read.

        Raises:
            InputError: the clip cannot be read; see `read_frames`.
            RunError: no room in the cache folder, or it cannot be written.
        """
        path = self._path(source)
        return self._cached(source, path) or self._decode(source, path, on_frame or (lambda _: None))

    def _path(self, source: ClipSource) -> Path:
        """Where a clip's frames are kept."""
        read = source.images or (source.path,)
        try:
            facts = [(path.name, (found := path.stat()).st_size, found.st_mtime_ns) for path in read]
        except OSError as error:
            raise InputError(f"{error.filename} cannot be read ({error.strerror}); check its permissions") from None
        key = json.dumps([_VERSION, str(source.path.resolve()), facts, asdict(self.options)])
        name = re.sub(r"[^\w.-]+", "-", source.name, flags=re.ASCII)[:80]  # of letters that take one byte each
        return self.folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.npy"

    def _cached(self, source: ClipSource, path: Path) -> Clip | None:
        """What is kept of a clip; None where it is missing or damaged."""
        try:
            facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            clip = _clip(source, path, facts)
            whole = list(clip.pixels.shape) == facts["shape"] and clip.pixels.dtype == np.uint8
        except (OSError, ValueError, TypeError, KeyError, EOFError):
            return None
        return clip if whole else None

    def _decode(self, source: ClipSource, path: Path, on_frame: Callable[[int], object]) -> Clip:
        with closing(read_frames(source)) as frames:
            try:
                with replaced(path) as temporary, temporary.open("wb") as file:
                    facts = _write(file, frames, self.options, on_frame)
                write_json(path.with_suffix(".json"), facts)
            except OSError as error:
                raise RunError(
                    f"decoded frames of {source.path} cannot be written to {self.folder}: {error.strerror or error}; "
                    "free some room there, give another cache folder, or resize the frames"
                ) from error
        return _clip(source, path, facts)


def _clip(source: ClipSource, path: Path, facts: dict[str, Any]) -> Clip:
    return Clip(
        name=source.name,
        store=path,
        stretches=tuple((start, stop) for start, stop in facts["stretches"]),
        flaws=tuple(Flaw(**flaw) for flaw in facts["flaws"]),
        part=source.part,
        camera=source.camera,
    )


def _write(
    file: BinaryIO, frames: Iterator[Grey | Flaw], options: DecodeOptions, on_frame: Callable[[int], object]
) -> dict[str, Any]:
    """Writes the usable frames one by one, so that no clip has to fit into memory; returns the facts about them."""
    stretches: list[list[int]] = []
    flaws: list[Flaw] = []
    shape: tuple[int, ...] = ()
    count = 0
    broken = True
    file.write(bytes(_HEADER_BYTES))
    for frame in frames:
        if isinstance(frame, Flaw):
            flaws.append(frame)
            broken |= frame.frames > 0
            on_frame(frame.frames)
            continue
        resized = options.resize(frame)
        shape = resized.shape
        file.write(np.ascontiguousarray(resized).data)
        if broken:
            stretches.append([count, count])
            broken = False
        count += 1
        stretches[-1][1] = count
        on_frame(1)
        if count == options.max_frames:
            break
    file.seek(0)
    file.write(_npy_header((count, *shape)))
    return {"shape": [count, *shape], "stretches": stretches, "flaws": [asdict(flaw) for flaw in merged(flaws)]}


def _npy_header(shape: tuple[int, ...]) -> bytes:
    """The header of format 1.0 of a C-ordered array of bytes, as long as `_HEADER_BYTES`."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    prefix = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
    return prefix + text.ljust(_HEADER_BYTES - 11).encode("latin1") + b"\n"


def default_cache_folder() -> Path:
    """Where decoded clips are kept: `video` in `$XDG_CACHE_HOME/layerdescent`, `~/.cache/layerdescent` by default."""
    return cache_folder() / "video"
