"""Benchmarks of specfit: asv suites (bench_*.py) and scripts that write tables for the docs."""
