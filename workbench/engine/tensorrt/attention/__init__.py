"""One kernel for rotary positions and causal attention, and the plugin that lets TensorRT call it."""
