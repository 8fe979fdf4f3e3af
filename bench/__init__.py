"""Benchmarks: ratios against peers that are installed beside us, interleaved in one run."""
