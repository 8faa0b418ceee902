"""Parts of the lowering: where sums live, which attends are calls, whose tokens a value is."""
