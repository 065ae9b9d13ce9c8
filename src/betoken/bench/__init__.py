"""Benchmarks: suites, cold alternated measurements, result files that resume, reports."""
