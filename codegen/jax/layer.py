"""layer_texts(program)   the decoder layer that goes behind attention, with its self-check."""

from codegen.assemble import Part
from codegen.programs import Program
from planner.errors import PlanError

LAYER_KEEP = ("init", "decoder_layer", "reference")
WIDTHS = ((1024, 256), (0, 16))  # from this width on, hidden widths are multiples of that


def layer_texts(program: Program) -> list[str | Part]:
    """What a program with a layer has in place of the self-check of attention.

    Raises PlanError for a plan that no layer can be made of.
    """
    refuse(program)
    kind = "dynamic" if program.dynamic else "static"
    names = ["layer", f"layer_{kind}", f"layer_check_{kind}", "layer_check"]
    names.append("start_free" if program.free else "start_bound")
    return [sizes(program), *(Part(f"jax/parts/{name}") for name in names)]


def refuse(program: Program) -> None:
    """Raise PlanError for a plan that no layer can be made of."""
    work = program.work
    if program.backward is None:
        raise PlanError("a decoder layer needs a backward plan too: give a pair, or --pass both")
    if work.seq != work.kv_seq:
        raise PlanError(
            f"a decoder layer attends to its own tokens: {work.seq} queries, {work.kv_seq} keys"
        )
    if not program.layout.alike:
        raise PlanError("a decoder layer needs queries and keys of a token on the same rank")
    if work.head_dim % 2:
        raise PlanError(f"rotary embedding needs an even head_dim, not {work.head_dim}")


def sizes(program: Program) -> str:
    """The widths of the model, and the positions of tokens in layout order."""
    dim = program.work.heads * program.work.head_dim
    step = next(step for least, step in WIDTHS if dim >= least)
    seq = "x.shape[1]" if program.free else "SEQ"
    lines = [
        "import numpy as np",
        "",
        f"DIM, HIDDEN = {dim}, {-(-8 * dim // (3 * step)) * step}  # of the feed-forward network",
        "NORM_EPS, ROPE_BASE = 1e-5, 10000.0",
        "",
        "",
        "def layout_positions(x):",
        '    """The positions of the tokens of x [batch, tokens, dim], -1 for padding."""',
        f"    return np.concatenate([positions(rank, {seq}) for rank in range(RANKS)])",
    ]
    return "\n".join(lines) + "\n"
