"""The messages of an ONNX file, as `wire_format` reads them: onnx.proto3 at IR version 13, but for strings,
maps and optional values."""

from __future__ import annotations

from edgedistill.runtime.trust import wire_format as wire

# A field with PART or PARTS that graph_check does not read is text, or describes.
MODEL: wire.Schema = {
    1: ("ir_version", wire.NUMBER),
    2: ("producer_name", wire.PART),
    3: ("producer_version", wire.PART),
    4: ("domain", wire.PART),
    5: ("model_version", wire.NUMBER),
    6: ("doc_string", wire.PART),
    7: ("graph", wire.PART),
    8: ("opset_import", wire.PARTS),
    14: ("metadata_props", wire.PARTS),
    20: ("training_info", wire.PARTS),
    25: ("functions", wire.PARTS),
    26: ("configuration", wire.PARTS),
}
OPSET: wire.Schema = {1: ("domain", wire.PART), 2: ("version", wire.NUMBER)}
GRAPH: wire.Schema = {
    1: ("node", wire.PARTS),
    2: ("name", wire.PART),
    5: ("initializer", wire.PARTS),
    10: ("doc_string", wire.PART),
    11: ("input", wire.PARTS),
    12: ("output", wire.PARTS),
    13: ("value_info", wire.PARTS),
    14: ("quantization_annotation", wire.PARTS),
    15: ("sparse_initializer", wire.PARTS),
    16: ("metadata_props", wire.PARTS),
}
NODE: wire.Schema = {
    1: ("input", wire.PARTS),
    2: ("output", wire.PARTS),
    3: ("name", wire.PART),
    4: ("op_type", wire.PART),
    5: ("attribute", wire.PARTS),
    6: ("doc_string", wire.PART),
    7: ("domain", wire.PART),
    8: ("overload", wire.PART),
    9: ("metadata_props", wire.PARTS),
    10: ("device_configurations", wire.PARTS),
}
ATTRIBUTE: wire.Schema = {
    1: ("name", wire.PART),
    2: ("f", wire.FLOAT),
    3: ("i", wire.NUMBER),
    4: ("s", wire.PART),
    5: ("t", wire.PART),
    6: ("g", wire.PART),
    7: ("floats", wire.FLOATS),
    8: ("ints", wire.NUMBERS),
    9: ("strings", wire.PARTS),
    10: ("tensors", wire.PARTS),
    11: ("graphs", wire.PARTS),
    13: ("doc_string", wire.PART),
    14: ("tp", wire.PART),
    15: ("type_protos", wire.PARTS),
    20: ("type", wire.NUMBER),
    21: ("ref_attr_name", wire.PART),
    22: ("sparse_tensor", wire.PART),
    23: ("sparse_tensors", wire.PARTS),
}
TENSOR: wire.Schema = {
    1: ("dims", wire.NUMBERS),
    2: ("data_type", wire.NUMBER),
    3: ("segment", wire.PART),
    4: ("float_data", wire.FLOATS),
    5: ("int32_data", wire.VARINTS),
    6: ("string_data", wire.PARTS),
    7: ("int64_data", wire.VARINTS),
    8: ("name", wire.PART),
    9: ("raw_data", wire.PART),
    10: ("double_data", wire.DOUBLES),
    11: ("uint64_data", wire.VARINTS),
    12: ("doc_string", wire.PART),
    13: ("external_data", wire.PARTS),
    14: ("data_location", wire.NUMBER),
    16: ("metadata_props", wire.PARTS),
}
FEW_INTEGERS: wire.Schema = {  # the same of a small tensor, whose integers are read
    **TENSOR,
    5: ("int32_data", wire.NUMBERS),
    7: ("int64_data", wire.NUMBERS),
    11: ("uint64_data", wire.NUMBERS),
}
VALUE: wire.Schema = {
    1: ("name", wire.PART),
    2: ("type", wire.PART),
    3: ("doc_string", wire.PART),
    4: ("metadata_props", wire.PARTS),
}
TYPE: wire.Schema = {1: ("tensor_type", wire.PART), 6: ("denotation", wire.PART)}
TENSOR_TYPE: wire.Schema = {1: ("elem_type", wire.NUMBER), 2: ("shape", wire.PART)}
SHAPE: wire.Schema = {1: ("dim", wire.PARTS)}
DIMENSION: wire.Schema = {
    1: ("dim_value", wire.NUMBER),
    2: ("dim_param", wire.PART),
    3: ("denotation", wire.PART),
}
