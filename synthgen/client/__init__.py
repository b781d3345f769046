"""Everything between us and a vLLM server: start one, ask it about itself, send it a chat."""
