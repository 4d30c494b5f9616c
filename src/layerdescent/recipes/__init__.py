"""Recipes: one YAML file an experiment says which model, which data, which arms, which seeds, and what is measured."""

from layerdescent.recipes.schema import Recipe, VideoRecipe, list_recipes, load_recipe

__all__ = ["Recipe", "VideoRecipe", "list_recipes", "load_recipe"]
