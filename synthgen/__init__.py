"""Synthetic data from a live inference server: prompts to traces, and the contract on disk."""

__version__ = "0.1.0"
