"""What decoding learns: acceptance, prices of experts, times, and whether speculation pays."""
