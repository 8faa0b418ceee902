"""Other names of options: old ones that still work, and those of other tools, for hints."""

from difflib import get_close_matches

import click

RENAMED = {  # options without their dashes, by names that work for one more release
    "blind": "validate",
    "buffers": "recv-buffers",
    "launch": "launch-latency",
    "share": "comm-sm-fraction",
}
SYNONYMS = {  # names in other tools, by option
    "--ranks": "gpus num-gpus gpu devices num-devices device world-size nproc nproc-per-node nprocs"
    " cp cp-size context-parallel-size sp-size",
    "--seq": "seqlen seq-len seq-length sequence-length tokens context-length max-seq-len",
    "--kv-seq": "kv-len kv-seqlen kv-seq-len cache",
    "--heads": "num-heads n-heads num-attention-heads q-heads",
    "--kv-heads": "num-kv-heads n-kv-heads num-key-value-heads num-query-groups",
    "--head-dim": "head-size dim-head d-head kv-channels",
    "--batch": "batch-size micro-batch-size",
    "--mask": "causal is-causal attention-mask attn-mask window documents",
    "--dtype": "precision data-type",
    "--pass": "passes backward forward direction",
    "--hardware": "gpu device chip accelerator machine",
    "--time-limit": "timeout max-time",
}


def renamed(word: str) -> str:
    """Returns the present name of an option; any other word unchanged."""
    return RENAMED.get(word, word)


def unknown_option(error: click.NoSuchOption) -> str:
    """Returns the error message for an unknown option, with the option that was probably meant."""
    known = [] if error.ctx is None else [o for p in error.ctx.command.params for o in p.opts]
    word = error.option_name.lstrip("-").replace("_", "-").lower()
    meant = [name for name in known if name.lstrip("-") == word]
    meant += [name for name, words in SYNONYMS.items() if word in words.split() and name in known]
    meant += [] if meant else get_close_matches(f"--{word}", known)[:1]
    said = " or ".join(map(repr, meant))
    return f"{error.message} Did you mean {said}?" if meant else error.message
