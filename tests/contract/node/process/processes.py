"""What the tests of whole node processes look at: slices in the API server, and the HTTP endpoint."""

import http.client

from dra_driver.kube.rest import RestClient

NODE, DRIVER = "node-a", "gpu.nvidia.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
POOL = 2
"""Slices of a node with two H100: their counter sets, and their devices."""


def ask(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except OSError as error:
        return 0, str(error)
    finally:
        connection.close()


def generations(rest: RestClient) -> list[tuple[str, int]]:
    return [(item["metadata"]["name"], item["spec"]["pool"]["generation"]) for item in rest.list(SLICES)["items"]]


def devices(rest: RestClient) -> list[str]:
    return [device["name"] for item in rest.list(SLICES)["items"] for device in item["spec"].get("devices") or ()]
