"""What a person reads."""

from __future__ import annotations

from typing import Any

TARGETS = {"decode_ms at 1 row": 4.0, "decode_over_floor at 64 rows": 1.6, "first_audio_ms": 12.0}
"""For VoxCPM2 in bfloat16 with 10 timesteps on an H200."""


def table(found: dict[str, Any]) -> str:
    lines = [f"{found.get('device', 'no device')}, torch {found.get('torch', '?')}, {found['seconds']} s", ""]
    lines += [f"{'ok' if c['passed'] else 'FAILED':<7}{c['name']:<45}{c['seconds']:>7} s  {c['detail']}" for c in found["checks"]]
    for bench in found["bench"]:
        lines += ["", f"FAILED {bench['size']}: {bench['error']}"] if "error" in bench else ["", *size_lines(bench)]
    return "\n".join([*lines, "", "targets, VoxCPM2 on an H200: " + ", ".join(f"{k} <= {v:g}" for k, v in TARGETS.items())])


def size_lines(bench: dict[str, Any]) -> list[str]:
    weights = f"{bench['weight_gb_per_step']} GB of weights at {bench['copy_gb_per_s']} GB/s"
    shapes = f"{bench['shapes']} shapes in {bench['recording_s']} s, {bench['graph_mib']} MiB"
    lines = [
        f"{bench['size']} {bench['dtype']}: floor {bench['floor_ms']} ms ({weights}), {shapes}",
        f"arithmetic: {bench['arithmetic_ms_per_row']} ms a row at the speed of large products; the bound is the larger of both",
        f"{'rows':>6}{'ms per step':>14}{'over the floor':>16}{'over the bound':>16}",
    ]
    over = zip(bench["decode_over_floor"].values(), bench["decode_over_bound"].values(), strict=True)
    rows_and_ms = zip(bench["decode_ms"].items(), over, strict=True)
    lines += [f"{rows:>6}{ms:>14}{floor:>16}{bound:>16}" for (rows, ms), (floor, bound) in rows_and_ms]
    lines += [f"each step awaited, at {rows} rows: {ms} ms" for rows, ms in bench["decode_ms_waiting"].items()]
    lines += [f"the host's part of a step, at {rows} rows: {ms} ms" for rows, ms in bench["launch_ms"].items()]
    lines += [f"first audio of a 100-slot prompt: {bench['first_audio_ms']} ms"]
    lines += [f"stages, ms, at {rows} rows: {ms}" for rows, ms in bench["stage_ms"].items()]
    lines += [f"the decoder alone, not recorded, ms, at {rows} rows: {ms}" for rows, ms in bench["decoder_ms"].items()]
    return [*lines, f"run eagerly {bench['eager_runs']}, recorded after start {bench['recorded_after_start']}"]
