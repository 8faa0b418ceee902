"""The file around a schedule: prints its header, layout and mask, and assembles the file."""
