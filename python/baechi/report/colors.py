"""Colors of devices and of what memory holds, told apart by color-blind readers too."""

from __future__ import annotations

from typing import Final

__all__ = ["CATEGORY_COLORS", "CATEGORY_LABELS", "DEVICE_COLORS", "device_color"]

DEVICE_COLORS: Final = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#f0e442",
    "#882255",
)
"""The palette of Okabe and Ito, with wine in place of black. From the ninth device on the same
colors come again, hatched on the page; names stand beside colors everywhere."""

CATEGORY_LABELS: Final = {
    "persistent": "held for the whole step (weights and other state of ops)",
    "weight": "weights",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "activation": "activations",
    "other": "other outputs",
    "control": "control",
    "copy": "received copies",
    "scratch": "scratch",
}
CATEGORY_COLORS: Final = {
    "persistent": "#bdbdbd",
    "weight": "#0072b2",
    "buffer": "#882255",
    "gradient": "#d55e00",
    "optimizer": "#cc79a7",
    "activation": "#56b4e9",
    "other": "#f0e442",
    "control": "#777777",
    "copy": "#e69f00",
    "scratch": "#009e73",
}


def device_color(device: int) -> str:
    """The color of a device by index."""
    return DEVICE_COLORS[device % len(DEVICE_COLORS)]
