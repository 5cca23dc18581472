"""Knowledge of deltas: per-block facts and order statistics, kept between runs."""
