"""Whether a run can start here: this machine, its packages, and the servers."""
