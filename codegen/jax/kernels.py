"""The kernels of a JAX program: of the platforms that it is for, and what merges their results."""

from codegen.assemble import Part

FUSED = {"tpu": "tpu", "gpu": "cuda"}  # --platform -> the name that JAX lowers for


def kernels(platform: str) -> list[str | Part]:
    """The texts that define `attend`, `attend_masked`, their backward passes and `merge`.

    Blocks of jnp serve the CPU, and what the fused kernels do not take.
    """
    names = [name for name in FUSED if platform in (name, "all")]
    files = ["kernels" if names else "kernels_one", *(f"kernels_{n}" for n in [*names, "cpu"])]
    parts = [Part(f"jax/parts/{name}") for name in [*files, "masked", "merge", "stand_in"]]
    rows = [*((FUSED[name], name) for name in names), ("default", "cpu")]
    table = [f'    "{name}": (attend_{x}, attend_backward_{x}),\n' for name, x in rows]
    return [*parts, "".join(["KERNELS = {\n", *table, "}\n"])]
