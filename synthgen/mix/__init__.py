"""Kept traces and rendered replies as one dataset."""
