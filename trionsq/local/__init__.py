"""Programs that join the packages: nsqd, its mounted dashboard, `trionsq up`, the demo."""
