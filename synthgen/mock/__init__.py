"""The parts of the mock server; `synthgen.mock_server` is its door."""
