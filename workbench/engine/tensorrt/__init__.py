"""Parts of the backend `tensorrt`: which TensorRT is here, the card, the builder, the session."""
