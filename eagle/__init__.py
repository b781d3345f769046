"""EAGLE-3 drafts: hidden states, draft vocabulary, training, export and live acceptance."""
