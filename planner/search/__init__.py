"""Search: tries plans that short recipes describe, including plans from pieces of the mask.

Recipe, build(recipe, ...)       a text, and the verified plan that it describes
explore(...) -> Candidate, ...   seeds, then found plans: layouts, movement, offloads
Prices, Score                    costs on a machine, and the predicted score of a plan
"""

from ringloom.planner.search.building import build as build
from ringloom.planner.search.exploring import BUDGET as BUDGET
from ringloom.planner.search.exploring import Candidate as Candidate
from ringloom.planner.search.exploring import backward_recipes as backward_recipes
from ringloom.planner.search.exploring import explore as explore
from ringloom.planner.search.prices import Prices as Prices
from ringloom.planner.search.prices import Score as Score
from ringloom.planner.search.recipe import FoundRecipe as FoundRecipe
from ringloom.planner.search.recipe import Recipe as Recipe
