"""Runs on the Hugging Face Hub: `asyncrl push`, `asyncrl pull`, and `hf://user/name` where a run is named."""
