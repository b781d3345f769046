"""Prompts from their sources: what may be used, what is held out, what is drawn."""
