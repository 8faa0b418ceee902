"""Search: plans from pieces of the mask, built from short recipes and tried in turn.

Recipe, build(recipe, ...)      a text, and the verified plan that it describes
explore(...) -> Tried, ...      seeds, then found plans: layouts, movement, offloads
Prices, Score                   costs on a machine, and the predicted score of a plan
"""

from ringloom.planner.search.building import build as build
from ringloom.planner.search.exploring import BUDGET as BUDGET
from ringloom.planner.search.exploring import Tried as Tried
from ringloom.planner.search.exploring import backwards as backwards
from ringloom.planner.search.exploring import explore as explore
from ringloom.planner.search.prices import Prices as Prices
from ringloom.planner.search.prices import Score as Score
from ringloom.planner.search.recipe import Found as Found
from ringloom.planner.search.recipe import Recipe as Recipe
