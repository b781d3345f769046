"""Replies that others wrote, with the ids that the verifier's server gives them."""
