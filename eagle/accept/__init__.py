"""The accept stage: what a draft is worth, live and by hidden states, side by side."""
