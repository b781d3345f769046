"""Prompt files, whatever their format and shape, to seed prompts."""
