"""What values deploy/chart takes: wrong ones are refused with the field's name."""

from typing import Any

import pytest

from tests.fakes import chart

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mpsHosts": {"enabled": True}}, "additional properties 'mpsHosts' not allowed"),
    ({"mpsHost": {"enable": True}}, "at '/mpsHost': additional properties 'enable' not allowed"),
    ({"mpsHost": {"enabled": "true"}}, "at '/mpsHost/enabled': got string, want boolean"),
    ({"kubelet": {"rootDir": "var/lib/kubelet"}}, "at '/kubelet/rootDir'"),
    ({"kubelet": {"rootDir": "/var/lib/kubelet/"}}, "at '/kubelet/rootDir'"),
    ({"driver": {"root": "/"}}, "at '/driver/root'"),
    ({"image": {"digest": "latest"}}, "at '/image/digest'"),
    ({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy': value must be one of"),
    ({"imagePullSecrets": ["registry"]}, "at '/imagePullSecrets/0': got string, want object"),
    ({"nodes": {"tolerations": [{"effect": "None"}]}}, "at '/nodes/tolerations/0/effect'"),
    ({"nodes": {"expressions": [{"key": "a", "op": "In"}]}}, "at '/nodes/expressions/0'"),
    ({"node": {"settings": {"poll": "5"}}}, "at '/node/settings': additional properties 'poll' not allowed"),
    ({"node": {"settings": {"POLL_INTERVAL": 5}}}, "at '/node/settings/POLL_INTERVAL': got number, want string"),
    ({"policies": {"pool.txt": "kind: GpuPolicy"}}, "at '/policies': additional properties 'pool.txt' not allowed"),
    ({"controller": {"replicas": 0}}, "at '/controller/replicas': minimum: got 0, want 1"),
    ({"driverName": "GPU.nvidia.com"}, "at '/driverName'"),
]


@pytest.mark.parametrize(("values", "said"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_value_is_refused_with_its_field(values: dict[str, Any], said: str) -> None:
    assert said in chart.refusal(values)


def test_what_a_parent_chart_passes_to_every_chart_is_taken() -> None:
    """Helm adds `global` to the values of each subchart, whether it uses it or not."""
    assert chart.refusal({"global": {"imageRegistry": "x"}}) == ""
