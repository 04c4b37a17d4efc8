"""Publish the devices of a node as ResourceSlices. Other packages import from here, not from the modules inside."""

from dra_driver.node.slices.api import RestSlicesApi
from dra_driver.node.slices.build import Built, build_devices, pool_name
from dra_driver.node.slices.diff import PoolIdentity, SliceBody, compute_writes
from dra_driver.node.slices.gates import ApiServerFeatures
from dra_driver.node.slices.layout import DesiredSlice, split
from dra_driver.node.slices.publisher import Publisher
from dra_driver.node.slices.reconcile import Reconciler
from dra_driver.node.slices.untrusted_slice import OtherPool
