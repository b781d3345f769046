"""What a run costs before it starts."""
