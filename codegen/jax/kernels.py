"""The kernels of a JAX program: of the platforms that it is for, and what merges their results."""

from codegen.assemble import Part


def kernels(platform: str) -> list[Part]:
    """The parts that define `attend`, `attend_masked`, their backward passes and `merge`.

    platform: tpu, gpu or cpu, whose kernels alone stand in the program then, or all.
    """
    if platform == "all":
        names = ["kernels", "kernels_tpu", "kernels_gpu", "kernels_cpu"]
    else:
        names = [f"kernels_for_{platform}", f"kernels_{platform}"]
    return [Part(f"jax/parts/{name}") for name in [*names, "masked", "merge", "stand_in"]]
