"""What is left to be copied, as commands and the console show it."""

from __future__ import annotations

from autorecovery.core.forecast import Forecast


def forecast_object(forecast: Forecast) -> dict[str, object]:
    """The same keys everywhere: scripts read them."""
    return {
        "ledgers": forecast.ledgers,
        "fragments": forecast.fragments,
        "bytesLeft": forecast.bytes_left,
        "parked": forecast.parked,
        "bytesPerSecond": forecast.bytes_per_second,
        "secondsLeft": forecast.seconds_left,
    }
