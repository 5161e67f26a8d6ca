"""A model in the formats of other programs: ONNX, int8, the compact folder, the hub."""
