"""The mixed dataset in the formats of others, each with a dataset card."""
