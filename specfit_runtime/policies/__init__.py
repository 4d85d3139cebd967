"""The decoding policies: one file per kind, and an entry here."""
