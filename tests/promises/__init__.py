"""What nsqd promises, and whether it was kept: for simulated days and for real processes."""
