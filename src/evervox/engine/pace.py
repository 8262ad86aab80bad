"""How long the planning of the next step may wait while the device computes one."""

from __future__ import annotations

from collections import deque

NUM_STEPS = 8
MARGIN_SECONDS = 0.0005


class Pace:
    """Planned at once, a step is closed to whoever arrives while the one before it is computed; planned late, the device waits.

    So it is planned as late as it may be: when the shortest of the last steps would be over but for twice the time that planning
    and launching take.
    """

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=NUM_STEPS)
        self._lead = 0.0

    def launched(self, seconds: float) -> None:
        """Planning and launching took this long. What was slow once is expected again for a while."""
        self._lead = max(seconds, 0.9 * self._lead)

    def landed(self, seconds: float) -> None:
        """The device took this long for a step."""
        self._steps.append(seconds)

    def slack(self, seconds: float) -> float:
        """For how much longer planning may wait, `seconds` after the present step began on the device. Never negative."""
        shortest = min(self._steps, default=0.0)
        return max(0.0, shortest - 2 * self._lead - MARGIN_SECONDS - seconds)
