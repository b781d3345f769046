"""The commands of `synthgen`, by the part of the line they belong to."""
