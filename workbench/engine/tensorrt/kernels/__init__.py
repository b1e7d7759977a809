"""Own kernels, and the plugins that let TensorRT call them: rope with attention, sum with norm, and the gated MLP."""
