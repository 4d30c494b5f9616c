"""How a metric is written: its scale, its digits and its unit."""

from dataclasses import dataclass

MINUS = "−"


@dataclass(frozen=True)
class Unit:
    """One metric's way onto the page."""

    name: str
    scale: float
    digits: int
    axis: str
    of_difference: str
    lower_is_better: bool = True

    def value(self, value: float | None) -> str:
        """A value in this unit, without the unit's name."""
        return number(None if value is None else self.scale * value, self.digits)

    def difference(self, value: float | None) -> str:
        """A difference in this unit, with its sign."""
        return number(None if value is None else self.scale * value, self.digits, signed=True)


FRAME_UNITS = {
    "rmse": Unit("RMSE", 1.0, 4, "RMSE", "RMSE"),
    "rmse_clipped": Unit("RMSE, clipped", 1.0, 4, "RMSE, clipped", "RMSE"),
    "psnr": Unit("PSNR", 1.0, 2, "PSNR (dB)", "dB", lower_is_better=False),
    "ssim": Unit("SSIM", 1.0, 3, "SSIM", "SSIM", lower_is_better=False),
}
"""What is measured of whole frames."""

UNITS = {
    "accuracy": Unit("accuracy", 100.0, 1, "accuracy (%)", "points", lower_is_better=False),
    "rmse": Unit("RMSE", 1.0, 4, "RMSE", "RMSE"),
    "perplexity": Unit("perplexity", 1.0, 2, "perplexity", "perplexity"),
}


def number(value: float | None, digits: int, *, signed: bool = False) -> str:
    """A number with a fixed count of decimals and a true minus sign; a dash where there is none.

    >>> number(-0.0123, 3), number(0.5, 1, signed=True), number(None, 2)
    ('−0.012', '+0.5', '–')
    """
    if value is None:
        return "–"
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", MINUS)
