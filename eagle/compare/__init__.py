"""The compare stage: drafts trained on each part of the mix and on the mix, side by side."""
