"""Publish the devices of a node as ResourceSlices. Other packages import from here, not from the modules inside."""

from dra_driver.node.slices.build import Built, build_devices, pool_name
from dra_driver.node.slices.diff import PoolIdentity, SliceBody, compute_writes
from dra_driver.node.slices.gates import ApiServerFeatures
from dra_driver.node.slices.layout import split
from dra_driver.node.slices.publisher import Publisher
from dra_driver.node.slices.untrusted_slice import OtherPool
