"""Layerwise descent-constrained training of transformers."""
