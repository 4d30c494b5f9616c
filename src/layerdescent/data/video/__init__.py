"""Video as windows of grey patches: read in the official layouts, decoded once, split by clips, cut into rows."""

from layerdescent.data.video.cache import ClipCache, DecodeOptions, default_cache_folder
from layerdescent.data.video.clips import Clip
from layerdescent.data.video.decode import Flaw, luma, read_frames
from layerdescent.data.video.layouts import ClipSource, find_clips
from layerdescent.data.video.prepare import PreparedVideo, SyntheticClips, VideoReport, prepare_video
from layerdescent.data.video.quality import psnr, ssim
from layerdescent.data.video.resize import Resize
from layerdescent.data.video.synthetic import synthetic_clips
from layerdescent.data.video.trivial import (
    background_windows,
    constant_mean,
    frame_patch_mean,
    median_background,
    patch_mean,
    temporal_mean,
    training_backgrounds,
    training_mean,
)
from layerdescent.data.video.windows import VideoWindows, all_positions, random_positions, sampled_positions

__all__ = [
    "Clip",
    "ClipCache",
    "ClipSource",
    "DecodeOptions",
    "Flaw",
    "PreparedVideo",
    "Resize",
    "SyntheticClips",
    "VideoReport",
    "VideoWindows",
    "all_positions",
    "background_windows",
    "constant_mean",
    "default_cache_folder",
    "find_clips",
    "frame_patch_mean",
    "luma",
    "median_background",
    "patch_mean",
    "prepare_video",
    "psnr",
    "random_positions",
    "read_frames",
    "sampled_positions",
    "ssim",
    "synthetic_clips",
    "temporal_mean",
    "training_backgrounds",
    "training_mean",
]
