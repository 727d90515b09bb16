"""Export to ONNX: an encoder and one step of a decoder as graphs that any ONNX runtime computes."""

from .onnx_export import export_onnx as export_onnx
