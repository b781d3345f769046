"""Prompts in, traces out: the servers kept busy, every reply kept."""
