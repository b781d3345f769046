"""What a run holds, for people: one reply on the terminal, a whole run on a page."""
