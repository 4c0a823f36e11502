"""Whatever watches or steers a run in the process that started it."""
