"""The fused `torch_npu` operators (to come)."""
