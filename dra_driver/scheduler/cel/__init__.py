"""Device selectors in CEL: ``compile_selector(expression).evaluate(DeviceView(driver, device))``. Code that walks a
syntax tree, as `lint` does, imports `parser` and `syntax`."""

from dra_driver.scheduler.cel.budget import selector_budget
from dra_driver.scheduler.cel.conjuncts import AttributeRefs, find_attribute_refs, split_conjuncts
from dra_driver.scheduler.cel.cost import COST_LIMIT
from dra_driver.scheduler.cel.program import MAX_LENGTH, DeviceView, Program, compile_selector
from dra_driver.scheduler.cel.signatures import FUNCTION_GATE, FUNCTION_SINCE, LACKS_BEFORE_1_36, LACKS_NONE
