"""Running emitted torch programs: ranks as processes, as threads, or those of a process group."""
