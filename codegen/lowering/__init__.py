"""The modules of the lowering: accumulators, attends, token order, and the loops it refuses."""
