"""OpenVINO: how a graph becomes its model, and how the model runs."""
