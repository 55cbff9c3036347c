"""Drop-in for the two original placers on networkx graphs with their attribute names.

`baechi.original.tf` is the placer of the TensorFlow implementation, `baechi.original.torch` that of
the PyTorch extension: the same placements, start times and failures, from the Rust core. Neither
framework is needed.
"""
