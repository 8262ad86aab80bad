"""Measures a voice by what a recogniser hears: see `python -m tools.evaluate_voice --help`."""
