"""The file around a schedule: its head, layout and mask as text, and how texts become one file."""
