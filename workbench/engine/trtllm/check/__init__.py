"""Whether the tap does in a real source tree of TensorRT-LLM what it promises."""
