"""grpc and protobuf without what they import for others, in a process of its own."""

import subprocess
import sys

SCRIPT = """
import sys
from dra_driver.node.process import lean_grpc
lean_grpc.load()
import grpc
assert not [name for name in sys.modules if name.split(".")[0] == "asyncio" or name.startswith("grpc.aio")]
from concurrent import futures
server = grpc.server(futures.ThreadPoolExecutor(1))
echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("x.Y", {"Z": echo}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    assert channel.unary_unary("/x.Y/Z")(b"hello", timeout=10) == b"hello"
server.stop(None).wait()
from dra_driver.core._pb.pluginregistration import api_pb2
status = api_pb2.RegistrationStatus(plugin_registered=True)
assert api_pb2.RegistrationStatus.FromString(status.SerializeToString()) == status
assert str(status) == "plugin_registered: true\\n"
left_out = {"asyncio", "typing_extensions", "google.protobuf.internal.python_message", "google.protobuf.text_format"}
assert not left_out & set(sys.modules)
from google.protobuf import text_format
assert text_format.MessageToString(status) == str(status)
import asyncio
from grpc import aio
assert asyncio.run(asyncio.sleep(0, "done")) == "done"
"""


def test_a_server_and_messages_work_and_a_later_import_gets_the_real_module() -> None:
    """The node process has little memory; a library that needs one of these modules must find it all the same."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=False, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
