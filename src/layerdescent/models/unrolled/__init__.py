"""Denoisers of video whose layers are steps of an optimisation, and their rivals; with the energies that they lower."""

from layerdescent.models.unrolled.denoiser import DenoiserConfig as DenoiserConfig
from layerdescent.models.unrolled.denoiser import DenoiserModel as DenoiserModel
from layerdescent.models.unrolled.denoiser import DenoiserOutput as DenoiserOutput
from layerdescent.models.unrolled.matrices import gaussian_measurements as gaussian_measurements
from layerdescent.models.unrolled.matrices import overcomplete_dct as overcomplete_dct
from layerdescent.models.unrolled.matrices import random_dictionary as random_dictionary
from layerdescent.models.unrolled.sparse_coding import DustConfig as DustConfig
from layerdescent.models.unrolled.sparse_coding import DustForDenoising as DustForDenoising
from layerdescent.models.unrolled.sparse_coding import IstaConfig as IstaConfig
from layerdescent.models.unrolled.sparse_coding import IstaForDenoising as IstaForDenoising
from layerdescent.models.unrolled.steps import attention_step as attention_step
from layerdescent.models.unrolled.steps import ista_step as ista_step
from layerdescent.models.unrolled.steps import joint_objective as joint_objective
from layerdescent.models.unrolled.steps import joint_step as joint_step
from layerdescent.models.unrolled.steps import lasso_objective as lasso_objective
from layerdescent.models.unrolled.steps import mlp_energy as mlp_energy
from layerdescent.models.unrolled.steps import mlp_step as mlp_step
from layerdescent.models.unrolled.steps import pair_energy as pair_energy
from layerdescent.models.unrolled.steps import soft_threshold as soft_threshold
from layerdescent.models.unrolled.transformer import TransformerDenoiserConfig as TransformerDenoiserConfig
from layerdescent.models.unrolled.transformer import TransformerForDenoising as TransformerForDenoising
from layerdescent.models.unrolled.ut import UtConfig as UtConfig
from layerdescent.models.unrolled.ut import UtForDenoising as UtForDenoising
