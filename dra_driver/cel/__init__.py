"""Device selectors in CEL: ``compile_selector(expression).evaluate(DeviceView(driver, device))``."""

from dra_driver.cel.device import DeviceView
from dra_driver.cel.program import MAX_LENGTH, Program, compile_selector

__all__ = ["MAX_LENGTH", "DeviceView", "Program", "compile_selector"]
