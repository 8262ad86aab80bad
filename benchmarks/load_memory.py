"""What loading takes: peak resident memory and seconds, for random weights of VoxCPM-0.5B's size, one process per dtype.

python tools/make_checkpoint.py voxcpm /tmp/half --size 0.5b
python -m benchmarks.load_memory /tmp/half --out docs/benchmarks/load_memory.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

BAR = 1.5
CHILD = """
import json, resource, sys, time
import torch
from pathlib import Path
from evervox.runner.load import load
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
loaded = load(Path(sys.argv[1]), dtype=sys.argv[2], device="cpu")
seconds = time.perf_counter() - began
now = int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"import_mb": before / 1024, "peak_mb": peak / 1024, "after_mb": now / 1024, "seconds": seconds}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32", "int8"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    weights = sum(path.stat().st_size for path in options.folder.glob("*.safetensors")) / 2**20
    print(f"weights on disk: {weights:.0f} MiB; the bar for bfloat16 is {BAR} times that")
    results = {}
    for dtype in options.dtypes:
        command = [sys.executable, "-c", CHILD, str(options.folder), dtype]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        results[dtype] = {**result, "peak_over_weights": result["peak_mb"] / weights}
        shown = "  ".join(f"{name} {value:.2f}" for name, value in results[dtype].items())
        print(f"{dtype:9s} {shown}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"weights_mb": weights, "bar": BAR, "dtypes": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
