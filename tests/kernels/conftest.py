"""`interpreted/` needs Triton's interpreter, which must be chosen before triton is imported: `test_interpreter` starts it."""

import os

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]
