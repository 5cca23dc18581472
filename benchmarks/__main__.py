"""`python -m benchmarks` is `benchmarks/run`."""

import sys

from benchmarks.run import main

sys.exit(main())
