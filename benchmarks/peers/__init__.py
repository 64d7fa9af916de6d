"""Other systems under the workloads of our own benchmarks: `ringcast bench peers`."""
