"""The decoding loop: draft, choose, verify, commit."""
