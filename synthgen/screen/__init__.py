"""What can be wrong with a trace: one small rule each, over what is decoded of it."""
