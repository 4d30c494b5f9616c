"""Recipes: one YAML file an experiment says which model, which data, which arms, which seeds, and what is measured."""

from layerdescent.recipes.loading import list_recipes, load_recipe
from layerdescent.recipes.schema import InstructionsRecipe, Recipe, VideoRecipe

__all__ = ["InstructionsRecipe", "Recipe", "VideoRecipe", "list_recipes", "load_recipe"]
