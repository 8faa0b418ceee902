"""schedule(program)   prints the passes of a PyTorch program, with the constants they use."""

from ringloom.codegen.expressions import form_of
from ringloom.codegen.programs import Program
from ringloom.codegen.torch.operands import kept_along
from ringloom.codegen.torch.printer import print_pass
from ringloom.codegen.words import SIZES


def schedule(program: Program) -> str:
    """Prints both passes; raises PlanError for an op without a call."""
    assert program.lowered
    form = form_of(program)
    functions = [print_pass(lowered, form) for lowered in program.lowered]
    mesh = max((lowered.mesh for lowered in program.lowered), key=len)  # others have one axis
    lines = [f"STEP = {program.token_stride}", f"MESH = {mesh}"]
    if len(mesh) > 1:
        lines.append(f"{', '.join(SIZES[len(mesh)])} = MESH")
    lines += [f"{name} = {values}" for name, values in form.data.items()]
    for function in functions:
        lines += ["", "", *function]
    if program.lowered[0].kept:
        lines += empty_like_function(program)
    return "\n".join(lines) + "\n"


def empty_like_function(program: Program) -> list[str]:
    """Prints a function that returns empty tensors shaped like the forward pass's results."""
    assert program.lowered
    forward = program.lowered[0]
    n = SIZES[len(forward.mesh)][kept_along(forward)]
    return [
        "",
        "",
        "@forward.register_fake",
        "def outputs_like(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> list[Tensor]:",
        '    """Return empty tensors shaped like the results of forward."""',
        f"    queries, k, v = (torch.cat([x.chunk({n}, 1)[0]] * {n}, 2) for x in (q, k, v))",
        "    lse, other = (x[..., :1].to(accum_dtype(x), copy=True) for x in (q, queries))",
        "    out, results = (x.new_empty((*x.shape[:3], V_HEAD_DIM)) for x in (q, queries))",
        "    return [out, lse, queries, k, v, results, other]",
    ]
