"""jax_layer   Program -> the source of a decoder layer whose backward repeats no attention."""

from codegen import jax_check, jax_layer_text
from codegen.jax_header import header
from codegen.jax_program import attention_file, chosen, self_check_main
from codegen.program import Program
from codegen.rewording import reworded
from codegen.torch_layer import ffn_width, refuse


def write(program: Program) -> str:
    """The file, formatted as ruff formats it.

    Raises PlanError for a plan that no layer can be made of: one without a backward plan, one
    whose queries and keys are not the same tokens on the same ranks, one of odd head_dim.
    """
    refuse(program)
    w = attention_file(program, layer_header(program))
    w.title("decoder layer")
    dim = program.work.heads * program.work.head_dim
    w.section(jax_layer_text.PARAMETERS.format(dim=dim, hidden=ffn_width(dim), rope_base="10000.0"))
    w.section(jax_layer_text.PARTS)
    w.section(jax_layer_text.LAYER)
    w.title("reference and self-check")
    w.section(jax_layer_text.REFERENCE)
    _, _, allowed = jax_check.DENSE.partition("\n\n\n")
    w.section(allowed.partition("\n\n\n")[0])
    w.section(jax_layer_text.CHECK)
    w.section(reworded(self_check_main(program), MAIN))
    return w.text()


MAIN = {
    "against dense attention": "against its reference",
    'jax.config.update("jax_enable_x64", dtype == "float64")': (
        'jax.config.update("jax_enable_x64", True)  # for the reference\n'
        '    jax.config.update("jax_default_matmul_precision", "highest")'
    ),
    "    kv_seq = max(1, round(options.seq * KV_SEQ / SEQ))\n": "",
    'verdicts = check(Mesh(np.array(devices[:P]), ("sp",)), options.seq, kv_seq, dtype)': (
        'mesh = Mesh(np.array(devices[:P]), ("sp",))\n'
        "    verdicts = check(mesh, options.seq, jnp.dtype(dtype))"
    ),
    "{name:3} error": "{name:14} error",
    'f"at {options.seq} queries and {kv_seq} keys"': 'f"at {options.seq} tokens"',
}


def layer_header(p: Program) -> str:
    """The docstring of the file."""
    return reworded(
        header(p, chosen(p)),
        {
            '"""Attention over': '"""A decoder layer over',
            "use       out = attention(q, k, v, mesh": (
                "use       y = decoder_layer(params, x, mesh=...), params = init(seed), x global,\n"
                "          [batch, tokens, dim]: RMSNorm, rotary embedding by true positions,\n"
                "          attention, SwiGLU; backward repeats no attention; or attention alone:\n"
                "          out = attention(q, k, v, mesh"
            ),
            "with dense attention": "with the reference",
        },
    )
