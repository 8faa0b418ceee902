"""Questions of somebody who is new here, each with the file and the name that answer it."""

import ast
from pathlib import Path

import pytest

from repository import ROOT

QUESTIONS = {
    "Where does zigzag decide who owns token 5?": "planner/layouts/by_place.py:zigzag",
    "Where does the ring say what travels in which step?": "planner/schedules/rings/ring.py:ring",
    "Where are all schedules listed?": "planner/schedules/__init__.py:ROWS",
    "Which query sees which keys under the causal mask?": "planner/masks/plain.py:Causal",
    "Where is the text of a mask read?": "planner/masks/parsing.py:parse",
    "Which nodes does a plan consist of?": "planner/ir.py:Move",
    "Where is the backward plan derived from a forward plan?": "planner/passes/adjoint.py:adjoint",
    "Where is a plan refused that attends a pair twice?": "planner/verify.py:check_tiles_once",
    "Where is a rectangle cut into kernel calls?": "planner/kernel_calls/calls.py:rectangle_calls",
    "Where are a plan's loops recognised?": "planner/loops/recovery.py:recover",
    "Where is the price of a hop?": "simulator/hardware/schema.py:Link",
    "Where is the price of a kernel call?": "simulator/costs/kernels.py:Kernels.seconds",
    "Where is the price of merging two partial results?": "simulator/costs/terms.py:merge_arrival",
    "Which links does a message cross?": "simulator/network/routes.py:Routes.path",
    "What is torus:4x4?": "simulator/network/topology.py:torus",
    "What can be asked of a slow rank or a cut link?": "simulator/scenario.py:Scenario",
    "Which engine times a plan?": "simulator/engines/choice.py:timed",
    "What can no schedule beat?": "simulator/bounds.py:lower_bound",
    "How many bytes does a rank hold at most?": "simulator/memory.py:memory",
    "Where do the programs for torch merge partial results?": "codegen/torch/parts/merge.py:merge",
    "Where is a program written?": "codegen/__init__.py:emit",
    "Where is a program tried before anyone gets it?": "codegen/check.py:check",
    "Where is dense attention, with which all is compared?": "runtimes/reference/dense.py:forward",
    "Where does a run count as exact?": "runtimes/validation.py:Check.exact",
    "Where does `compare` say why one schedule is slower?": "ringloom/recommendation.py:why",
    "Where is a finished batch of a sweep written?": "ringloom/sweeps/store.py:Store.add",
    "Which names does `rl` have?": "ringloom/__init__.py:__dir__",
}


def names(path: Path) -> set[str]:
    """List the definitions of a module: functions, classes, constants, and Class.member."""
    return set(defined(ast.parse(path.read_text(encoding="utf-8")).body))


def defined(body: list[ast.stmt], prefix: str = "") -> list[str]:
    words = list[str]()
    for node in body:
        match node:
            case ast.FunctionDef(name=name):
                words.append(prefix + name)
            case ast.ClassDef(name=name):
                words += [prefix + name, *defined(node.body, f"{prefix}{name}.")]
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                words.append(prefix + name)
    return words


def wrong(answer: str) -> str:
    """Describe an error of an answer, if it has one."""
    path, name = answer.split(":")
    if not (ROOT / path).is_file():
        return f"there is no {path}"
    return "" if name in names(ROOT / path) else f"{path} defines no {name}"


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_has_its_answer(question: str) -> None:
    assert wrong(QUESTIONS[question]) == ""


def test_twenty_questions_have_as_many_answers() -> None:
    assert len(set(QUESTIONS.values())) == len(QUESTIONS) >= 20


def test_an_answer_that_moved_is_noticed() -> None:
    assert wrong("planner/nowhere.py:zigzag") == "there is no planner/nowhere.py"
    assert (
        wrong("planner/layouts/by_place.py:helix") == "planner/layouts/by_place.py defines no helix"
    )
    assert wrong("simulator/costs/kernels.py:seconds").endswith("defines no seconds")
