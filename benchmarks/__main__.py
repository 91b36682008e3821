"""`python -m benchmarks` is `python benchmarks/run.py`."""

from benchmarks.run import main

raise SystemExit(main())
