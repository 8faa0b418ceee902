"""Other names of options: old names that still work, and names in other tools for hints."""

from difflib import get_close_matches

import click

RENAMED = {  # old name, which works for one more release: current name
    "blind": "validate",
    "buffers": "recv-buffers",
    "launch": "launch-latency",
    "share": "comm-sm-fraction",
}
SYNONYMS = {  # option: names in other tools
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


def current_name(word: str) -> str:
    """Returns the current name of a renamed option; returns any other word unchanged."""
    return RENAMED.get(word, word)


def unknown_option_message(error: click.NoSuchOption) -> str:
    """Returns the error message for an unknown option; suggests similar options."""
    options = [] if error.ctx is None else [o for p in error.ctx.command.params for o in p.opts]
    word = error.option_name.lstrip("-").replace("_", "-").lower()
    similar = [name for name in options if name.lstrip("-") == word]
    similar += [
        name for name, words in SYNONYMS.items() if word in words.split() and name in options
    ]
    similar += [] if similar else get_close_matches(f"--{word}", options)[:1]
    suggestion = " or ".join(map(repr, similar))
    return f"{error.message} Did you mean {suggestion}?" if similar else error.message
