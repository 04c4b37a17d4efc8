"""Values that mutations of the allocator's inputs are made of."""

from typing import Any

SIZES = ("0", "1", "2", "3", "7", "10", "1Gi", "2Gi", "5Gi", "8Gi", "10Gi", "12Gi", "16Gi", "20Gi")
NUMBERS_WRITTEN = (
    "40Gi",
    "80Gi",
    "100Gi",
    "512Mi",
    "1536Mi",
    "10240Mi",
    "500m",
    "1500m",
    "1.5",
    "0.1",
    "2e3",
    "1k",
    "3000",
    "1024",
    "1Ki",
)
QUANTITIES = SIZES + NUMBERS_WRITTEN
STRINGS = ("", "a", "b", "x", "gpu", "mig", "node-a", "node-b", "p", "q", "gpu.example.com", "r", "s0", "d0", "d1")
TEXTS = ("", "x", "1Gi", "-5", "1e999999999", "9" * 500, "\x00", "\ud800", "All", "device.driver == 1", "(" * 200)
NUMBERS = (0, 1, -1, 2**31, 2**63, -(2**63), 10**30, 10**4000, 0.5, -0.0, 1e308, float("inf"), float("nan"))
NESTED: tuple[Any, ...] = ([], {}, [[]], [None], {"": None}, {"a": {"b": []}}, [1, "x"], ["x"] * 40)
WILD: tuple[Any, ...] = (None, True, False, *NUMBERS, *TEXTS, *NESTED)
EXPRESSIONS = (
    "true",
    "false",
    "device.nope",
    "device.driver == 'gpu.example.com'",
    "device.driver == 'nic.example.com'",
    "device.attributes['gpu.example.com'].m == 1",
    "device.attributes['gpu.example.com'].?m.orValue(0) == 0",
    "has(device.attributes['gpu.example.com'].model)",
    "device.capacity['gpu.example.com'].memory.compareTo(quantity('20Gi')) >= 0",
    "device.allowMultipleAllocations",
    "!device.allowMultipleAllocations",
    "'gpu.example.com' in device.attributes",
    "device.attributes['gpu.example.com'].exists(k, k == 'index')",
    "cel.bind(a, device.attributes['gpu.example.com'], has(a.index) && a.index > 0)",
)
ATTRIBUTES = (
    "gpu.example.com/model",
    "gpu.example.com/numa",
    "gpu.example.com/index",
    "gpu.example.com/m",
    "example.com/root",
    "resource.kubernetes.io/pcieRoot",
    "gpu.example.com/parentUUID",
    "gpu.example.com/profile",
)
GATES = (
    "DRAAdminAccess",
    "DRAPrioritizedList",
    "DRAPartitionableDevices",
    "DRADeviceTaints",
    "DRADeviceBindingConditions",
    "DRAConsumableCapacity",
)
EFFECTS = ("NoSchedule", "NoExecute", "None", "Future")
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
