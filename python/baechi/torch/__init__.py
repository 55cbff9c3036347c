"""PyTorch: plan a model, rehearse the plan on simulated devices, apply it and train."""
