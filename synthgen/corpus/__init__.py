"""The contract on disk that both packages share: records, journals, manifests, settings."""
