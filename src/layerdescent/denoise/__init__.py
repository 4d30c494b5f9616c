"""A video through a denoiser: any length, with its colour, its sound and its time stamps."""

from layerdescent.denoise.pictures import Details, Picture, details_of, pictures
from layerdescent.denoise.video import DenoisedVideo, LayerQuality, denoise_video
from layerdescent.denoise.writing import FORMATS

__all__ = [
    "FORMATS",
    "DenoisedVideo",
    "Details",
    "LayerQuality",
    "Picture",
    "denoise_video",
    "details_of",
    "pictures",
]
