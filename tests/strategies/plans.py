"""Random verified plans: of the schedules or made from nothing, and changed."""

from random import Random

from hypothesis import strategies as st

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Plan
from ringloom.planner.masks import Full
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.passes.trim import trim
from ringloom.planner.planning import DEFAULT_PASSES, plan, run_passes
from ringloom.planner.plans import Plans
from ringloom.planner.verify import verify_pair
from strategies import schedules
from strategies.changes import changed
from strategies.meshes import Cut, cuts, small_workload
from strategies.visits import Habits, drawn_habits, visits

numbers = st.randoms(use_true_random=False)
BY_HEADS = ["head-chunks", "llama3", "ulysses", "ulysses-gather", "ulysses-stages", "usp"]


def derived(rng: Random, built: Plan) -> Plan:
    """The verified plan, as it is or by the passes that named schedules go through."""
    plainly = () if isinstance(built.workload.mask, Full) else (trim,)
    return run_passes(built, rng.choice([plainly, plainly, plainly, (trim,), DEFAULT_PASSES]))


def made(rng: Random, cut: Cut) -> Plans:
    """A forward plan, alone or with its adjoint, or a backward plan after a plain forward one."""
    what = rng.choice(["backward", "backward", "forward", "forward", "adjoint"])
    forward = visits(rng, cut, "forward", Habits() if what == "backward" else drawn_habits(rng))
    forward = derived(rng, forward)
    match what:
        case "forward":
            return Plans(forward)
        case "adjoint":
            keep = rng.choice([(), ("KV",), ("Q", "KV", "OUT")]) if cut.shared == "heads" else ()
            return verify_pair(forward, derived(rng, adjoint(forward, keep)))
        case _:
            backward = visits(rng, cut, "backward", drawn_habits(rng))
            return verify_pair(forward, derived(rng, backward))


@st.composite
def made_plans(draw: st.DrawFn) -> Plans:
    """Plans over meshes from nothing, as they are or changed."""
    rng, cut = draw(numbers), draw(cuts())
    plans = made(rng, cut)
    return changed(rng, plans, 3) if rng.randrange(3) == 0 else plans


@st.composite
def changed_plans(draw: st.DrawFn) -> Plans:
    """Schedules' plans of few tokens and heads, half of them by heads, with a few changes."""
    ranks = draw(st.sampled_from([2, 3, 4, 4, 5, 6]))
    seq, kv_heads = ranks * draw(st.sampled_from([2, 4])), draw(st.sampled_from([1, 2, ranks]))
    work = small_workload(draw, seq, kv_heads)
    try:
        name = draw(schedules(ranks) | schedules(ranks, BY_HEADS))
        plans = plan(name, work, ranks, pass_="both")
    except PlanError:
        plans = plan("zigzag", work, ranks, pass_="both")
    return changed(draw(numbers), plans, 8)


random_plans = made_plans() | changed_plans()
