"""Section 5.1: text becomes batches. Needs TensorFlow and tensorflow-text.

Shapes in this room: B batch, T target length, S source length.
"""
