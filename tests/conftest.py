"""Tests run tiny models: one thread each is fastest, and keeps a shared machine usable."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
