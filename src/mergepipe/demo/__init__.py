"""A small real family, trained here and now, merged under budgets and compared with the full read.

Only `model`, `train` and `evaluate` import torch; they run in processes of their own.
"""
