"""Own kernels, and the plugins that let TensorRT call them: rope with attention, and the gate of the MLP."""
