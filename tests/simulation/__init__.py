"""Bad days of a whole cluster, each from one seed: see `plan`, `day`, `checks`, and README.md."""
