"""A bundle's graphs of one fixed shape, compiled for Qualcomm's NPU by onnxruntime-qnn, and not run: python
qnn_compile.py BUNDLE < request.json. See bench/ecosystems.py.

The target is a Snapdragon X Elite (SC8380XP); what its compiler refuses stays on the CPU.
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import onnx
import onnxruntime
import onnxruntime_qnn

TARGET = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": "60", "htp_arch": "73"}


def left_on_the_cpu(graph, folder):
    """How many nodes of each operator are outside of what was compiled."""
    written = str(Path(folder) / f"{graph.stem}.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", written)
    devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == "QNN"]
    options.add_provider_for_devices(devices[:1], TARGET)
    onnxruntime.InferenceSession(str(graph), options)
    counts = Counter(node.op_type for node in onnx.load(written, load_external_data=False).graph.node)
    if not counts.pop("EPContext", 0):
        raise RuntimeError("QNN compiled nothing of the graph")
    return counts


def main():
    folder, request = Path(sys.argv[1]), json.load(sys.stdin)
    onnxruntime.register_execution_provider_library("QNN", onnxruntime_qnn.get_library_path())
    compiled = {}
    with tempfile.TemporaryDirectory() as temporary:
        for precision, name in request["files"].items():
            left = left_on_the_cpu(folder / name, temporary)
            named = ", ".join(f"{count} {operator}" for operator, count in left.items())
            compiled[precision] = f"compiles{f'; on the CPU {named}' if left else ''}"
    print(json.dumps({"version": onnxruntime_qnn.__version__, "compiled": compiled}))


main()
