"""Free GPUs of a node for maintenance, undrain them, and request guarded operations of a free GPU."""

from dra_driver.kubectl.drain.gpu_request import operate
from dra_driver.kubectl.drain.report import DrainReport, document_of, state_left
from dra_driver.kubectl.drain.run import DrainOptions, drain, undrain
from dra_driver.kubectl.drain.view import wait_at_most
