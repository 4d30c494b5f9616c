"""Clips out of numbers: textured sprites that move over a textured background that doesn't, in light that drifts.

What a denoiser can use is there: a background that stays the same for many frames, motion by fractions of a pixel,
one thing hiding another, and brightness that no long average removes. Nothing is read, so nothing can be missing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from layerdescent.data.video.clips import Clip
from layerdescent.errors import InputError

Plane = NDArray[np.float64]

_ILLUMINATION = 0.05  # how far the light swings to either side, as a fraction of brightness
_PERIOD = 160  # frames that one swing takes


def synthetic_clips(
    *, clips: int = 12, frames: int = 64, height: int = 96, width: int = 96, cameras: int = 3, seed: int = 0
) -> list[Clip]:
    """Procedural clips; the same arguments give the same bytes [C].

    A frame is x_t = clip(g_t(u) · (a composition of background and sprites), 0, 1) with g_t(u) a gain that changes
    slowly in time and, by a gradient, over the frame; it is rounded to bytes as a camera's would be.

    Args:
        clips: how many.
        frames: in each clip.
        height: of a frame, in pixels.
        width: of a frame, in pixels.
        cameras: how many different backgrounds; clip i is from camera i mod `cameras`.
        seed: of everything.

    Returns:
        Clips in memory, named `clip-00` and so on. Clip i does not depend on how many clips there are.

    Raises:
        InputError: a number below 1, or frames smaller than 16 pixels.

    Example:
        >>> first, second = synthetic_clips(clips=2, frames=4, height=32, width=48, cameras=1)
        >>> first.pixels.shape, first.pixels.dtype, first.camera == second.camera
        ((4, 32, 48), dtype('uint8'), True)
    """
    if min(clips, frames, cameras) < 1 or min(height, width) < 16:
        raise InputError(
            f"synthetic clips: {clips} clips, {frames} frames and {cameras} cameras of {width}x{height} pixels are "
            "asked for; give 1 or more of each, and frames of 16x16 or larger"
        )
    backgrounds = [_background(np.random.default_rng([seed, 0, camera]), height, width) for camera in range(cameras)]
    return [
        Clip(
            name=f"clip-{number:02d}",
            store=_film(np.random.default_rng([seed, 1, number]), backgrounds[number % cameras], frames),
            stretches=((0, frames),),
            camera=f"camera-{number % cameras}",
        )
        for number in range(clips)
    ]


def _film(generator: Generator, background: Plane, frames: int) -> NDArray[np.uint8]:
    height, width = background.shape
    count = int(generator.integers(5, 9))
    sprites = [_sprite(generator, height, width) for _ in range(count)]
    sprites.sort(key=lambda sprite: sprite.depth)  # later ones are nearer, and hide earlier ones
    phase = generator.uniform(0, 2 * np.pi)
    tilt = generator.uniform(-0.5, 0.5, size=2)
    gradient = tilt[0] * np.linspace(-1, 1, height)[:, None] + tilt[1] * np.linspace(-1, 1, width)[None, :]
    film = np.empty((frames, height, width), dtype=np.uint8)
    for time in range(frames):
        frame = background.copy()
        for sprite in sprites:
            sprite.paint(frame, time)
        swing = np.sin(phase + 2 * np.pi * time / _PERIOD)
        gain = 1 + _ILLUMINATION * swing * (1 + gradient)
        film[time] = np.rint(np.clip(frame * gain, 0, 1) * 255)
    return film


# Texture --------------------------------------------------------------------------------------------------------------


def fractal_noise(generator: Generator, height: int, width: int, coarsest: int = 32, fall: float = 0.6) -> Plane:
    """Noise with structure at many scales: sum over k of fall^k · (smooth noise with one value every coarsest/2^k px).

    Args:
        generator: where the values come from.
        height: in pixels.
        width: in pixels.
        coarsest: distance of the values of the coarsest octave, in pixels; the finest has one every 2 pixels.
        fall: how much smaller each finer octave is.

    Returns:
        (height, width) with mean 0 and standard deviation 1.
    """
    total = np.zeros((height, width))
    cell, amplitude = coarsest, 1.0
    while cell >= 2:
        lattice = generator.standard_normal((height // cell + 2, width // cell + 2))
        rows, columns = _smooth_weights(height, cell), _smooth_weights(width, cell)
        total += amplitude * (rows @ lattice @ columns.T)
        cell, amplitude = cell // 2, amplitude * fall
    centred = total - total.mean()
    return np.asarray(centred / max(float(centred.std()), 1e-12))


def _smooth_weights(length: int, cell: int) -> Plane:
    """(length, length // cell + 2) weights that interpolate between lattice values without kinks (smoothstep)."""
    place = np.arange(length) / cell
    before = place.astype(np.int64)
    rest = place - before
    blend = rest * rest * (3 - 2 * rest)
    weights = np.zeros((length, length // cell + 2))
    weights[np.arange(length), before] = 1 - blend
    weights[np.arange(length), before + 1] = blend
    return weights


def _background(generator: Generator, height: int, width: int) -> Plane:
    """Regions of different brightness and texture with clear borders, a path through them, and joints in the paving."""
    regions = fractal_noise(generator, height, width, coarsest=64, fall=0.4)
    grass = 0.38 + 0.07 * fractal_noise(generator, height, width, coarsest=8, fall=0.9)
    wall = 0.55 + 0.05 * fractal_noise(generator, height, width, coarsest=32, fall=0.6)
    ground = np.where(regions > 0.2, grass, wall)
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    angle = generator.uniform(-0.5, 0.5)
    across = (rows - height * generator.uniform(0.35, 0.65)) * np.cos(angle) - (columns - width / 2) * np.sin(angle)
    along = (rows - height / 2) * np.sin(angle) + (columns - width / 2) * np.cos(angle)
    stones = 0.72 + 0.03 * fractal_noise(generator, height, width, coarsest=16, fall=0.7)
    joints = np.minimum(np.abs((across + 500) % 9 - 4.5), np.abs((along + 500) % 13 - 6.5)) < 0.6
    stones = np.where(joints, stones - 0.14, stones)
    path = np.clip(0.22 * height - np.abs(across) + 0.5, 0, 1)  # a border one pixel soft
    return np.asarray(np.clip(path * stones + (1 - path) * ground, 0.02, 0.98))


# Sprites --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sprite:
    """A textured superellipse on a straight way, which sways, and comes in again on the other side."""

    texture: Plane  # (2b + 3, 2a + 3): one pixel more on each side than the shape, to interpolate in
    half_height: float
    half_width: float
    exponent: float
    start: tuple[float, float]
    velocity: tuple[float, float]  # rows and columns a frame
    sway: tuple[float, float]  # amplitude in pixels, frames a period
    depth: float

    def centre(self, time: int, height: int, width: int) -> tuple[float, float]:
        """Where it is, in pixels; the way is as long as the frame and what it takes to leave it."""
        swing = self.sway[0] * np.sin(2 * np.pi * time / self.sway[1])
        margin_rows, margin_columns = self.half_height + 2, self.half_width + 2
        row = (self.start[0] + self.velocity[0] * time + margin_rows) % (height + 2 * margin_rows) - margin_rows
        column = (self.start[1] + self.velocity[1] * time + margin_columns) % (
            width + 2 * margin_columns
        ) - margin_columns
        return float(row + swing), float(column)

    def paint(self, frame: Plane, time: int) -> None:
        """Put it into a frame."""
        height, width = frame.shape
        row, column = self.centre(time, height, width)
        top, left = int(np.floor(row - self.half_height)), int(np.floor(column - self.half_width))
        bottom, right = int(np.ceil(row + self.half_height)) + 1, int(np.ceil(column + self.half_width)) + 1
        first_row, first_column = max(top, 0), max(left, 0)
        last_row, last_column = min(bottom, height), min(right, width)
        if first_row >= last_row or first_column >= last_column:
            return
        rows, columns = np.arange(first_row, last_row) - row, np.arange(first_column, last_column) - column
        distance = (
            np.abs(rows[:, None] / self.half_height) ** self.exponent
            + np.abs(columns[None, :] / self.half_width) ** self.exponent
        ) ** (1 / self.exponent)
        cover = np.clip((1 - distance) * min(self.half_height, self.half_width) + 0.5, 0, 1)
        seen = frame[first_row:last_row, first_column:last_column]
        seen += cover * (self._look_up(rows, columns) - seen)

    def _look_up(self, rows: Plane, columns: Plane) -> Plane:
        """The texture at places between its pixels, by linear interpolation."""
        return _between(rows, self.texture.shape[0]) @ self.texture @ _between(columns, self.texture.shape[1]).T


def _between(offsets: Plane, length: int) -> Plane:
    """(n, length) weights of linear interpolation at places counted from the middle."""
    places = np.clip(offsets + (length - 1) / 2, 0, length - 1.001)
    before = places.astype(np.int64)
    weights = np.zeros((len(offsets), length))
    weights[np.arange(len(offsets)), before] = 1 - (places - before)
    weights[np.arange(len(offsets)), before + 1] = places - before
    return weights


def _sprite(generator: Generator, height: int, width: int) -> _Sprite:
    scale = min(height, width)
    half_height, half_width = generator.uniform(0.05, 0.13, size=2) * scale + 1.5
    shape = (2 * int(np.ceil(half_height)) + 3, 2 * int(np.ceil(half_width)) + 3)
    level, contrast = generator.uniform(0.08, 0.92), generator.uniform(0.06, 0.16)
    texture = level + contrast * fractal_noise(generator, *shape, coarsest=8, fall=0.8)
    speed, heading = generator.uniform(0.2, 1.8), generator.uniform(0, 2 * np.pi)
    return _Sprite(
        texture=np.clip(texture, 0, 1),
        half_height=float(half_height),
        half_width=float(half_width),
        exponent=float(generator.choice([2.0, 2.5, 6.0])),
        start=(float(generator.uniform(0, height)), float(generator.uniform(0, width))),
        velocity=(0.5 * float(speed * np.sin(heading)), float(speed * np.cos(heading))),
        sway=(float(generator.uniform(0, 1.2)), float(generator.uniform(8, 24))),
        depth=float(generator.random()),
    )
