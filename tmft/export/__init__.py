"""A model in the formats of other programs: ONNX, OpenVINO, int8, the compact folder, the hub."""
